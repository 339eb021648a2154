//! What a policy runs and copies, in order, and the bytes that this takes at least. None of it depends on
//! time: when copies are done decides only how long sent-away values linger.

use super::maps::Maps;

/// What happens to a feature map between its forward and its backward uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// It stays in memory.
    Keep,
    /// It is copied to the other memory after its last forward use, and brought back.
    Swap,
    /// It is dropped after its last forward use. It is made again for the first task that needs it, with
    /// whatever else is missing, and then stays until its last use.
    Recompute,
    /// The same, but if it is made again only on the way to another map, it doesn't stay.
    RecomputeLean,
}

/// What a policy does at one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Runs a task; if it runs again, `for_map` or `NONE` says for which map.
    Run { task: u32, again_for: u32 },
    /// Copies a map to the other memory.
    Out { map: u32 },
    /// The map must be back now; its copy may be issued from operation `from` on.
    Back { map: u32, from: u32 },
}

/// No map.
pub(super) const NONE: u32 = u32::MAX;

/// How often making one input of a task may overwrite another before the policy is given up.
const MOST_LOOKS: usize = 16;

/// A policy is impossible: this value is gone and can't be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

/// An instance of a value in memory.
#[derive(Clone, Copy)]
struct Instance {
    /// Whether planned uses may read it.
    present: bool,
    /// Whether it takes bytes until `last`.
    counted: bool,
    /// The last operation that uses it, plus one; 0 if it was given and not used.
    end: u32,
}

/// The operations of a policy; reused from policy to policy.
#[derive(Default)]
pub(super) struct Unfolded {
    pub(super) ops: Vec<Op>,
    /// By operation, the bytes in use while it happens if whatever was sent away is gone at once and whatever
    /// is brought back arrives only when it must.
    pub(super) base: Vec<i64>,
    /// The largest of them.
    pub(super) peak: u64,
    /// Values to free, with the operation before which that happens. Maps that are sent away aren't among
    /// them at that point.
    pub(super) frees: Vec<(u32, u32)>,
    /// By task, its first operation with those that bring or make again what it needs.
    pub(super) begins: Vec<u32>,
    values: Vec<Instance>,
    /// By map, whether the other memory has it.
    stored: Vec<bool>,
    /// By map, the operation after the last run of its producer or its last copy out.
    since: Vec<u32>,
    transients: Vec<u32>,
    stack: Vec<(u32, u32)>,
}

impl Unfolded {
    /// Unfolds a policy. `issue` is the task with which the copy back of a map may begin, by map; without
    /// it, any copy may begin as soon as the map can be missing.
    pub(super) fn unfold(
        &mut self,
        maps: &Maps<'_, '_>,
        actions: &[Action],
        issue: Option<&[usize]>,
    ) -> Result<(), Lost> {
        let graph = maps.graph;
        self.reset(maps);
        for task in 0..graph.tasks.len() {
            self.begins.push(self.ops.len() as u32);
            self.make_inputs(maps, actions, issue, task)?;
            self.run(maps, task, NONE);
            for &map in &maps.let_go[task] {
                match actions[map as usize] {
                    Action::Keep => continue,
                    Action::Swap => self.send(maps, map),
                    Action::Recompute | Action::RecomputeLean => {}
                }
                self.values[maps.maps[map as usize].value].present = false;
            }
            for &value in &maps.dead[task] {
                self.values[value as usize].present = false;
            }
        }
        for (value, what) in graph.values.iter().enumerate() {
            if !what.kept {
                self.end(maps, value);
            }
        }
        self.count(maps);
        Ok(())
    }

    fn reset(&mut self, maps: &Maps<'_, '_>) {
        self.ops.clear();
        self.begins.clear();
        self.frees.clear();
        self.base.clear();
        self.base.push(maps.graph.fixed as i64);
        self.values.clear();
        for what in &maps.graph.values {
            let given = what.producer.is_none();
            self.values.push(Instance {
                present: given,
                counted: given,
                end: 0,
            });
            self.base[0] += if given { what.bytes as i64 } else { 0 };
        }
        self.stored.clear();
        self.stored.resize(maps.maps.len(), false);
        self.since.clear();
        self.since.resize(maps.maps.len(), 0);
    }

    /// Brings or makes again whatever a task needs.
    fn make_inputs(
        &mut self,
        maps: &Maps<'_, '_>,
        actions: &[Action],
        issue: Option<&[usize]>,
        task: usize,
    ) -> Result<(), Lost> {
        let graph = maps.graph;
        let mut wanted = NONE;
        self.stack.clear();
        self.stack.push((task as u32, 0));
        // Making one input may overwrite another that was there; then a second look makes it again.
        let mut looks = 0;
        while let Some(&mut (top, ref mut next)) = self.stack.last_mut() {
            let inputs = &graph.tasks[top as usize].inputs;
            if let Some(&value) = inputs.get(*next as usize) {
                *next += 1;
                if self.values[value].present {
                    continue;
                }
                let map = maps.of(value);
                if self.stack.len() == 1 {
                    wanted = map.map_or(NONE, |map| map as u32);
                }
                match map {
                    Some(map) if self.stored[map] => {
                        self.bring(maps, map, issue.map_or(0, |issue| issue[map].min(task)));
                    }
                    _ => match graph.values[value].producer {
                        Some(producer) if graph.tasks[producer].rerunnable => {
                            self.stack.push((producer as u32, 0));
                        }
                        _ => return Err(Lost),
                    },
                }
                continue;
            }
            if inputs.iter().any(|&value| !self.values[value].present) {
                looks += 1;
                if looks > MOST_LOOKS {
                    return Err(Lost);
                }
                if let Some((_, next)) = self.stack.last_mut() {
                    *next = 0;
                }
                continue;
            }
            self.stack.pop();
            if let Some(&(above, _)) = self.stack.last() {
                self.again(maps, actions, top as usize, wanted, above as usize == task);
            }
        }
        while let Some(value) = self.transients.pop() {
            self.values[value as usize].present = false;
        }
        Ok(())
    }

    /// Runs a task again for a map. What it writes stays or not as [`Action`] says; what was in memory stays.
    fn again(
        &mut self,
        maps: &Maps<'_, '_>,
        actions: &[Action],
        task: usize,
        wanted: u32,
        direct: bool,
    ) {
        for &value in &maps.graph.tasks[task].outputs {
            let stays = self.values[value].present
                || maps.of(value).is_some_and(|map| match actions[map] {
                    Action::Recompute => true,
                    Action::RecomputeLean => direct,
                    Action::Keep | Action::Swap => false,
                });
            if !stays {
                self.transients.push(value as u32);
            }
        }
        self.run(maps, task, wanted);
    }

    fn run(&mut self, maps: &Maps<'_, '_>, task: usize, again_for: u32) {
        let at = self.ops.len() as u32;
        let what = &maps.graph.tasks[task];
        for &value in &what.inputs {
            self.values[value].end = at + 1;
        }
        for &value in &what.overwrites {
            let instance = &mut self.values[value];
            instance.present = false;
            instance.counted = false;
            self.change(at, -(maps.graph.values[value].bytes as i64));
        }
        for &value in &what.outputs {
            self.start(maps, value, at);
        }
        self.ops.push(Op::Run {
            task: task as u32,
            again_for,
        });
    }

    /// Copies a map out; after that it is gone, and whoever plays the operations lets it linger.
    fn send(&mut self, maps: &Maps<'_, '_>, map: u32) {
        let at = self.ops.len() as u32;
        let value = maps.maps[map as usize].value;
        self.ops.push(Op::Out { map });
        self.since[map as usize] = at + 1;
        self.stored[map as usize] = true;
        self.values[value].counted = false;
        self.change(at + 1, -(maps.maps[map as usize].bytes as i64));
    }

    /// A map is back, for a copy that may begin with a task.
    fn bring(&mut self, maps: &Maps<'_, '_>, map: usize, issue: usize) {
        let at = self.ops.len() as u32;
        self.stored[map] = false;
        let begin = self.begins.get(issue).map_or(at, |&begin| begin);
        self.ops.push(Op::Back {
            map: map as u32,
            from: begin.max(self.since[map]).min(at),
        });
        self.start(maps, maps.maps[map].value, at);
    }

    /// A new instance begins, and the one before ends after its last use.
    fn start(&mut self, maps: &Maps<'_, '_>, value: usize, at: u32) {
        self.end(maps, value);
        self.values[value] = Instance {
            present: true,
            counted: true,
            end: at + 1,
        };
        self.change(at, maps.graph.values[value].bytes as i64);
        if let Some(map) = maps.of(value) {
            self.since[map] = self.since[map].max(at + 1);
        }
    }

    fn end(&mut self, maps: &Maps<'_, '_>, value: usize) {
        let Instance { counted, end, .. } = self.values[value];
        if counted {
            self.values[value].counted = false;
            self.change(end, -(maps.graph.values[value].bytes as i64));
            self.frees.push((end, value as u32));
        }
    }

    /// From this operation on, more bytes are in use.
    fn change(&mut self, at: u32, bytes: i64) {
        let at = at as usize;
        if self.base.len() <= at {
            self.base.resize(at + 1, 0);
        }
        self.base[at] += bytes;
    }

    /// Sums up the changes.
    fn count(&mut self, maps: &Maps<'_, '_>) {
        let mut bytes = 0;
        let mut peak = 0;
        for (at, base) in self.base.iter_mut().enumerate() {
            bytes += *base;
            *base = bytes;
            if let Some(Op::Run { task, .. }) = self.ops.get(at) {
                *base += maps.graph.tasks[*task as usize].workspace as i64;
            }
            peak = peak.max(*base);
        }
        self.peak = peak as u64;
    }
}
