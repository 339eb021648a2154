//! Vectors of each instruction set behind one trait, for loops that the compiler doesn't vectorize well by
//! itself. Every method is inlined into a function that has the target features; anywhere else it would be a
//! call.

#![allow(
    unsafe_code,
    reason = "vector instructions; that the machine has them is the caller's promise"
)]

/// A vector register's worth of elements.
pub trait Vector: Copy {
    type Element: Copy;
    const LANES: usize;

    /// A vector whose elements are all `x`.
    ///
    /// # Safety
    /// For every method, the machine has the instruction set and pointers are valid for [`Self::LANES`]
    /// elements of any alignment.
    unsafe fn splat(x: Self::Element) -> Self;

    /// The elements at `from`.
    ///
    /// # Safety
    /// As for [`Vector::splat`].
    unsafe fn load(from: *const Self::Element) -> Self;

    /// Writes the elements at `to`.
    ///
    /// # Safety
    /// As for [`Vector::splat`].
    unsafe fn store(self, to: *mut Self::Element);

    /// self + other
    ///
    /// # Safety
    /// As for [`Vector::splat`].
    unsafe fn add(self, other: Self) -> Self;

    /// The larger of each pair of elements; if one is NaN, the result is either of the two.
    ///
    /// # Safety
    /// As for [`Vector::splat`].
    unsafe fn max(self, other: Self) -> Self;

    /// self · factor + addend, rounded once where the instruction set can.
    ///
    /// # Safety
    /// As for [`Vector::splat`].
    unsafe fn multiply_add(self, factor: Self, addend: Self) -> Self;
}

/// A type that has vectors.
pub trait Vectors: Sized + Copy + 'static {
    #[cfg(target_arch = "x86_64")]
    type Avx512: Vector<Element = Self>;
    #[cfg(target_arch = "x86_64")]
    type Avx2: Vector<Element = Self>;
    /// Vectors that every machine has.
    type Portable: Vector<Element = Self>;
}

impl Vectors for f32 {
    #[cfg(target_arch = "x86_64")]
    type Avx512 = std::arch::x86_64::__m512;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = std::arch::x86_64::__m256;
    type Portable = [f32; 4];
}

impl Vectors for f64 {
    #[cfg(target_arch = "x86_64")]
    type Avx512 = std::arch::x86_64::__m512d;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = std::arch::x86_64::__m256d;
    type Portable = [f64; 2];
}

macro_rules! vector {
    ($vector:ty, $element:ty, $lanes:literal, $splat:expr, $load:expr, $store:expr, $add:expr, $max:expr, $multiply_add:expr) => {
        #[allow(
            unused_unsafe,
            reason = "some vector operations are safe functions, some are not"
        )]
        impl Vector for $vector {
            type Element = $element;
            const LANES: usize = $lanes;

            #[inline(always)]
            unsafe fn splat(x: $element) -> Self {
                // SAFETY: the caller's promise, here and below.
                unsafe { $splat(x) }
            }

            #[inline(always)]
            unsafe fn load(from: *const $element) -> Self {
                // SAFETY: as above.
                unsafe { $load(from) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $element) {
                // SAFETY: as above.
                unsafe { $store(to, self) }
            }

            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $add(self, other) }
            }

            #[inline(always)]
            unsafe fn max(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $max(self, other) }
            }

            #[inline(always)]
            unsafe fn multiply_add(self, factor: Self, addend: Self) -> Self {
                // SAFETY: as above.
                unsafe { $multiply_add(self, factor, addend) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    vector!(
        __m512,
        f32,
        16,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_add_ps,
        _mm512_max_ps,
        _mm512_fmadd_ps
    );
    vector!(
        __m512d,
        f64,
        8,
        _mm512_set1_pd,
        _mm512_loadu_pd,
        _mm512_storeu_pd,
        _mm512_add_pd,
        _mm512_max_pd,
        _mm512_fmadd_pd
    );
    vector!(
        __m256,
        f32,
        8,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_add_ps,
        _mm256_max_ps,
        _mm256_fmadd_ps
    );
    vector!(
        __m256d,
        f64,
        4,
        _mm256_set1_pd,
        _mm256_loadu_pd,
        _mm256_storeu_pd,
        _mm256_add_pd,
        _mm256_max_pd,
        _mm256_fmadd_pd
    );
}

macro_rules! portable {
    ($element:ty, $lanes:literal) => {
        vector!(
            [$element; $lanes],
            $element,
            $lanes,
            |x| [x; $lanes],
            |from: *const $element| from.cast::<[$element; $lanes]>().read_unaligned(),
            |to: *mut $element, x: [$element; $lanes]| {
                to.cast::<[$element; $lanes]>().write_unaligned(x)
            },
            |a: [$element; $lanes], b: [$element; $lanes]| -> [$element; $lanes] {
                std::array::from_fn(|i| a[i] + b[i])
            },
            |a: [$element; $lanes], b: [$element; $lanes]| -> [$element; $lanes] {
                std::array::from_fn(|i| if a[i] < b[i] { b[i] } else { a[i] })
            },
            |a: [$element; $lanes],
             b: [$element; $lanes],
             c: [$element; $lanes]|
             -> [$element; $lanes] { std::array::from_fn(|i| a[i] * b[i] + c[i]) }
        );
    };
}

portable!(f32, 4);
portable!(f64, 2);
