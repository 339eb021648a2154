//! Offsets for the buffers of a plan: each, the largest first, at the lowest address that is free.

use std::cmp::Reverse;

use scrimp_plan::{BufferId, CheckedLayout, CheckedPlan, Layout, LayoutViolation, check_layout};

/// Places all buffers and checks the result.
pub fn place(plan: &CheckedPlan) -> Result<CheckedLayout, Vec<LayoutViolation>> {
    let mut order: Vec<BufferId> = plan.buffers().keys().collect();
    order.sort_by_key(|&id| Reverse(plan.buffers()[id].bytes));
    let mut layout = Layout::default();
    for _ in &order {
        layout.offsets.push(0);
    }
    let mut placed: Vec<BufferId> = Vec::new();
    for id in order {
        let buffer = &plan.buffers()[id];
        let meets = |&other: &BufferId| {
            let other = &plan.buffers()[other];
            other.device == buffer.device && other.start < buffer.end && buffer.start < other.end
        };
        let span = |other: BufferId| {
            let start = layout.offsets[other];
            (start, start + plan.buffers()[other].bytes)
        };
        let mut taken: Vec<(u64, u64)> = placed.iter().copied().filter(meets).map(span).collect();
        taken.sort_unstable();
        let mut lowest = 0;
        for (start, end) in taken {
            if start >= lowest + buffer.bytes {
                break;
            }
            lowest = lowest.max(end);
        }
        layout.offsets[id] = lowest;
        placed.push(id);
    }
    check_layout(plan, layout)
}
