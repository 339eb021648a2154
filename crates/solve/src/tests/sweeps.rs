//! Tests of sweeps: over budgets and over speeds of links.

use super::*;

#[test]
fn faster_links_are_not_slower_in_a_sweep() {
    let mut rng = Random::new(12, 0);
    let mut swapped = 0;
    for order in [Order::Fixed, Order::Free] {
        let shape = Shape {
            tasks: 16,
            rich: true,
        };
        let alone = problem(shape, &mut rng);
        let at = |rate: f64, rerunnable: bool| {
            let speed = LinkSpeed {
                out: rate,
                back: rate,
                latency: 0.0,
                half: false,
                drag: 0.0,
            };
            let mut parts = alone.with_memory("ram", &speed).unwrap().0.parts();
            for task in parts.tasks.values_mut() {
                task.rerunnable &= rerunnable;
            }
            if rate <= 0.25 {
                parts.links.clear();
            }
            Problem::new(parts).unwrap()
        };
        // No link, three speeds, and waiting elsewhere alone at the last speed.
        let variants = [
            (0.25, true),
            (1.0, true),
            (2.0, true),
            (8.0, true),
            (8.0, false),
        ];
        let variants = variants.map(|(rate, again)| (at(rate, again), Capacities::unlimited()));
        let (floor, peak) = (floor_bytes(&alone).unwrap(), base_peak(&alone));
        let budgets: Vec<u64> = (0..4).map(|k| floor + (peak - floor) * k / 4).collect();
        let brief = Options {
            time_limit: Duration::from_millis(20),
            ..options(order, Method::Search)
        };
        let swept = solve_variants(&variants, &budgets, &brief, &mut |_, _, _| {}).unwrap();
        let cost = |variant: usize, budget: usize| {
            let outcome = swept[variant][budget].1.as_ref();
            outcome.map_or(f64::INFINITY, |solved: &Solved| {
                assert!(solved.lower_bound <= solved.cost * (1.0 + 1e-9));
                let timed = simulate(&solved.plan).makespan();
                assert!((solved.cost - timed).abs() <= 1e-9 * timed);
                solved.cost
            })
        };
        for (slow, fast) in [(0, 1), (1, 2), (2, 3), (4, 3)] {
            for (budget, _) in budgets.iter().enumerate() {
                let pair = [cost(slow, budget), cost(fast, budget)];
                assert!(pair[1] <= pair[0], "{pair:?}");
                swapped += usize::from(pair[1] < pair[0]);
                let bound = |variant: usize| {
                    let outcome = swept[variant][budget].1.as_ref();
                    outcome.map_or(f64::INFINITY, |solved| solved.lower_bound)
                };
                assert!(bound(fast) <= bound(slow) * (1.0 + 1e-12));
            }
        }
    }
    assert!(swapped > 0);
}

#[test]
fn larger_budgets_are_not_slower_in_a_sweep() {
    let mut rng = Random::new(10, 0);
    for order in [Order::Fixed, Order::Free] {
        let p = problem(
            Shape {
                tasks: 24,
                rich: true,
            },
            &mut rng,
        );
        let (floor, peak) = (floor_bytes(&p).unwrap(), base_peak(&p));
        let budgets: Vec<u64> = (0..20)
            .rev()
            .map(|k| floor + (peak - floor) * k / 19)
            .collect();
        let brief = Options {
            time_limit: Duration::from_millis(100),
            ..options(order, Method::Search)
        };
        let outcomes = solve_sweep(
            &p,
            &Capacities::unlimited(),
            &budgets,
            &brief,
            &mut |_, _| {},
        )
        .unwrap();
        let mut last = 0.0;
        for (budget, outcome) in &outcomes {
            match outcome {
                Ok(solved) => {
                    assert!(solved.plan.peak(device()) <= *budget && solved.cost >= last);
                    last = solved.cost;
                }
                Err(_) => last = f64::INFINITY,
            }
        }
        assert!(
            outcomes[0].1.is_ok(),
            "the largest budget needs no recomputation"
        );
    }
}
