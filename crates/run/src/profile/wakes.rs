//! How long it takes until a thread that sleeps goes on after it was woken.

use std::hint::spin_loop;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::typical::typical;

/// How often a thread is woken; the first time isn't measured.
const WAKES: usize = 40;
/// Time between two of them, in which this thread works and the other falls asleep.
const WORKED: Duration = Duration::from_millis(1);

/// Typical seconds from waking a thread to its next instruction.
pub fn wake_seconds() -> f64 {
    let (call, called) = (Mutex::new(None::<Instant>), Condvar::new());
    let asleep = || {
        let call = call.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = called.wait_while(call, |call| call.is_none());
        let call = woken.unwrap_or_else(PoisonError::into_inner).take();
        call.map_or(0.0, |call| call.elapsed().as_secs_f64())
    };
    let seconds: Vec<f64> = std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| (0..WAKES).map(|_| asleep()).collect());
        for _ in 0..WAKES {
            let start = Instant::now();
            // A call that wasn't answered yet may not be replaced.
            while start.elapsed() < WORKED {
                spin_loop();
            }
            while !answered(&call) {
                std::thread::yield_now();
            }
            *call.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            called.notify_one();
        }
        sleeper.join().unwrap_or_default()
    });
    typical(seconds.get(1..).unwrap_or_default())
}

fn answered(call: &Mutex<Option<Instant>>) -> bool {
    call.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_none()
}

#[cfg(test)]
mod tests {
    #[test]
    fn threads_wake() {
        let seconds = super::wake_seconds();
        assert!(seconds > 0.0 && seconds.is_finite());
    }
}
