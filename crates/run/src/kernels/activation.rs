//! Piecewise linear activations. They are cheap enough to be applied, and computed again, inside other
//! kernels, with the same bits as by themselves.

use crate::real::Real;

/// A function of one element, and its gradient from its result, as [`scrimp_graph::Op::UnaryGrad`] defines
/// it.
pub trait Activation<T>: Copy + Send + Sync {
    /// f(x)
    fn value(self, x: T) -> T;
    /// dx from y = f(x) and dy.
    fn gradient(self, y: T, dy: T) -> T;
}

/// x
#[derive(Clone, Copy)]
pub struct Identity;

impl<T: Real> Activation<T> for Identity {
    #[inline(always)]
    fn value(self, x: T) -> T {
        x
    }
    #[inline(always)]
    fn gradient(self, _: T, dy: T) -> T {
        dy
    }
}

/// max(x, 0)
#[derive(Clone, Copy)]
pub struct Relu;

impl<T: Real> Activation<T> for Relu {
    #[inline(always)]
    fn value(self, x: T) -> T {
        x.or_more(T::ZERO)
    }
    #[inline(always)]
    fn gradient(self, y: T, dy: T) -> T {
        if y > T::ZERO { dy } else { T::ZERO }
    }
}

/// x where x ≥ 0, otherwise this factor times x.
#[derive(Clone, Copy)]
pub struct LeakyRelu<T>(pub T);

impl<T: Real> Activation<T> for LeakyRelu<T> {
    #[inline(always)]
    fn value(self, x: T) -> T {
        if x < T::ZERO { self.0 * x } else { x }
    }
    #[inline(always)]
    fn gradient(self, y: T, dy: T) -> T {
        if y > T::ZERO { dy } else { self.0 * dy }
    }
}

/// min(max(x, lo), hi)
#[derive(Clone, Copy)]
pub struct Clip<T> {
    /// May be −∞.
    pub lo: T,
    /// May be ∞.
    pub hi: T,
}

impl<T: Real> Activation<T> for Clip<T> {
    #[inline(always)]
    fn value(self, x: T) -> T {
        x.or_more(self.lo).or_less(self.hi)
    }
    #[inline(always)]
    fn gradient(self, y: T, dy: T) -> T {
        if y > self.lo && y < self.hi {
            dy
        } else {
            T::ZERO
        }
    }
}
