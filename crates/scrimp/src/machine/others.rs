//! What others take from the processors: other programs, and other guests of the same host. Times that are measured
//! meanwhile are longer by about as much. Only Linux tells.

use std::fs;

/// Processor time since the system started, in the system's units.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    all: f64,
    /// Neither idle nor this process's.
    others: f64,
}

/// A watch on what others take.
#[derive(Debug)]
pub struct Others(Option<Ticks>);

impl Others {
    /// Begins to watch.
    pub fn watch() -> Others {
        Others(now())
    }

    /// The part of all processors' time that others have taken since; `None` if that isn't known.
    pub fn share(&self) -> Option<f64> {
        let (begin, end) = (self.0?, now()?);
        let all = end.all - begin.all;
        (all > 0.0).then(|| ((end.others - begin.others) / all).clamp(0.0, 1.0))
    }
}

fn now() -> Option<Ticks> {
    let system = fs::read_to_string("/proc/stat").ok()?;
    ticks(&system, &fs::read_to_string("/proc/self/stat").ok()?)
}

/// From `/proc/stat` and `/proc/self/stat`.
fn ticks(system: &str, process: &str) -> Option<Ticks> {
    let line = system.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields = line.split_whitespace().map(|field| field.parse().ok());
    // User, nice, system, idle, waiting for disks, two kinds of interrupts, stolen. What follows is counted in these.
    let fields: Vec<f64> = fields.take(8).collect::<Option<_>>()?;
    let idle = fields.get(3)? + fields.get(4)?;
    // A program's name, in parentheses, may have spaces. User and system time are the 12th and 13th field behind it.
    let behind = &process[process.rfind(')')? + 1..];
    let mut own = behind.split_whitespace().skip(11);
    let mut own = || own.next()?.parse::<f64>().ok();
    let all = fields.iter().sum();
    Some(Ticks {
        all,
        others: all - idle - (own()? + own()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_idle_nor_own_is_others() {
        let system = "cpu  100 1 20 500 30 4 5 60 7 8\ncpu0 50 0 10 250 15 2 2 30 0 0\n";
        let process = "42 (a b) c) S 1 2 3 4 5 6 7 8 9 10 70 15 1 1 20 0 3 0 100\n";
        let expected = Ticks {
            all: 720.0,
            others: 720.0 - 530.0 - 85.0,
        };
        assert_eq!(ticks(system, process), Some(expected));
        assert_eq!(ticks("cpu  1 2", process), None);
        assert_eq!(ticks(system, "42 (x"), None);
    }
}
