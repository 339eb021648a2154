//! Instruction sets: what this machine has, and a way to compile a loop for the widest one.

#![allow(
    unsafe_code,
    reason = "functions with target features are called after detection"
)]

use std::sync::OnceLock;

use crate::vector::{Vector, Vectors};

#[cfg(test)]
thread_local! {
    static NARROWED: std::cell::Cell<Option<Isa>> = const { std::cell::Cell::new(None) };
}

/// The instruction sets that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What every machine of this architecture has.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, CD, DQ and VL.
    Avx512,
}

impl Isa {
    /// The best set of this machine, detected once.
    pub fn detect() -> Isa {
        static ISA: OnceLock<Isa> = OnceLock::new();
        *ISA.get_or_init(detect)
    }

    /// The set that this thread's loops are compiled for: the best one, unless a test narrowed it.
    #[inline(always)]
    pub fn current() -> Isa {
        #[cfg(test)]
        if let Some(isa) = NARROWED.get() {
            return isa;
        }
        Isa::detect()
    }

    /// Makes this thread's loops use this set, which must not be wider than the machine's.
    #[cfg(test)]
    pub fn narrow(self) {
        NARROWED.set(Some(self.min(Isa::detect())));
    }

    /// Whether a fused multiply-add is as fast as a single multiplication or addition.
    #[inline(always)]
    pub fn fuses(self) -> bool {
        cfg!(target_arch = "aarch64") || self != Isa::Portable
    }

    /// Name for messages and plan files, since results and workspaces depend on the set.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
    {
        Isa::Avx512
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        Isa::Avx2
    } else {
        Isa::Portable
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Isa {
    Isa::Portable
}

/// Runs `f`, compiled for the widest instruction set of this machine. Give it whole loops: `f` is inlined
/// into a function with those target features, and the functions that it calls must be inlinable too.
#[inline(always)]
pub fn wide<R>(f: impl FnOnce() -> R) -> R {
    wide_for(
        #[inline(always)]
        |_| f(),
    )
}

/// Like [`wide`], but tells `f` which set it is compiled for. To the compiler that is a constant.
#[inline(always)]
pub fn wide_for<R>(f: impl FnOnce(Isa) -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    match Isa::current() {
        // SAFETY: the features were detected.
        Isa::Avx512 => return unsafe { with_avx512(f) },
        // SAFETY: as above.
        Isa::Avx2 => return unsafe { with_avx2(f) },
        Isa::Portable => {}
    }
    f(Isa::Portable)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma")]
fn with_avx512<R>(f: impl FnOnce(Isa) -> R) -> R {
    f(Isa::Avx512)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn with_avx2<R>(f: impl FnOnce(Isa) -> R) -> R {
    f(Isa::Avx2)
}

/// A loop written with vectors that can be compiled for any instruction set.
pub trait Work<T> {
    type Output;

    /// Runs the loop. Implementations must be `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine has the vectors' instruction set.
    unsafe fn run<V: Vector<Element = T>>(self) -> Self::Output;
}

#[inline(always)]
pub fn vectors<T: Vectors, W: Work<T>>(work: W) -> W::Output {
    wide_for(
        #[inline(always)]
        |isa| {
            // SAFETY: `wide_for` runs this with a set that was detected.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => work.run::<T::Avx512>(),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => work.run::<T::Avx2>(),
                    _ => work.run::<T::Portable>(),
                }
            }
        },
    )
}
