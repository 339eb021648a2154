//! The innermost loops of matrix products: they compute a small block of C from a packed panel of A and one
//! of B.
//!
//! A panel of A with R rows is stored as `[k][R]`, a panel of B with `columns` columns as `[k][columns]`.
//! Every element of a block is one chain of multiply-adds in the order of k, whatever the size of the block,
//! so results don't depend on how a product was cut into blocks and threads.

#![allow(
    unsafe_code,
    reason = "vector instructions on raw panels; bounds are the caller's"
)]
#![allow(
    clippy::needless_range_loop,
    reason = "indices into register blocks must be constants after unrolling"
)]

use crate::simd::Isa;

/// Computes an R×(V·lanes) block: `c = a·b`, or `c += a·b` with `accumulate`. The arguments are the depth,
/// the panel of A, the panel of B, C, the number of elements between rows of C, and `accumulate`.
///
/// # Safety of calls
/// The panels hold `depth` steps, the block of C is writable, and the machine has the instruction set.
pub type Block<T> = unsafe fn(usize, *const T, *const T, *mut T, usize, bool);

pub struct Blocks<T: 'static> {
    /// Most rows of a block.
    pub rows: usize,
    /// Columns of a panel of B.
    pub columns: usize,
    pub lanes: usize,
    /// `table[rows − 1][vectors − 1]`
    pub table: &'static [[Block<T>; 2]],
}

/// An element type that has such blocks.
pub trait Micro: Sized + 'static {
    /// The blocks of an instruction set that this machine has.
    fn blocks(isa: Isa) -> &'static Blocks<Self>;

    /// `to[p·step + r] = rows[r][p]` for p < depth, r < 4.
    ///
    /// # Safety
    /// The four rows hold `depth` elements; `to` is writable at those places.
    unsafe fn interleave4(rows: [*const Self; 4], depth: usize, to: *mut Self, step: usize);
}

macro_rules! table {
    ($f:ident: $($r:literal)*) => { &[$([$f::<$r, 1> as Block<_>, $f::<$r, 2> as Block<_>]),*] };
}

macro_rules! block {
    ($(#[$feature:meta])* $name:ident, $t:ty, $lanes:expr,
     $zero:expr, $load:expr, $store:expr, $splat:expr, $multiply_add:expr, $add:expr) => {
        $(#[$feature])*
        #[allow(unused_unsafe, reason = "some vector operations are safe functions, some are not")]
        unsafe fn $name<const R: usize, const V: usize>(
            depth: usize,
            mut a: *const $t,
            mut b: *const $t,
            c: *mut $t,
            stride: usize,
            accumulate: bool,
        ) {
            // SAFETY: the caller's conditions.
            unsafe {
                let mut sums = [[$zero; V]; R];
                for _ in 0..depth {
                    let mut columns = [$zero; V];
                    for v in 0..V {
                        columns[v] = $load(b.add(v * $lanes));
                    }
                    for r in 0..R {
                        let row = $splat(*a.add(r));
                        for v in 0..V {
                            sums[r][v] = $multiply_add(row, columns[v], sums[r][v]);
                        }
                    }
                    a = a.add(R);
                    b = b.add(2 * $lanes);
                }
                for r in 0..R {
                    for v in 0..V {
                        let c = c.add(r * stride + v * $lanes);
                        let sum = if accumulate { $add($load(c), sums[r][v]) } else { sums[r][v] };
                        $store(c, sum);
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Block;
    use std::arch::x86_64::*;

    block!(
        #[target_feature(enable = "avx512f")]
        f32_avx512,
        f32,
        16,
        _mm512_setzero_ps(),
        |p| _mm512_loadu_ps(p),
        |p, x| _mm512_storeu_ps(p, x),
        |x| _mm512_set1_ps(x),
        |a, b, c| _mm512_fmadd_ps(a, b, c),
        |a, b| _mm512_add_ps(a, b)
    );
    block!(
        #[target_feature(enable = "avx512f")]
        f64_avx512,
        f64,
        8,
        _mm512_setzero_pd(),
        |p| _mm512_loadu_pd(p),
        |p, x| _mm512_storeu_pd(p, x),
        |x| _mm512_set1_pd(x),
        |a, b, c| _mm512_fmadd_pd(a, b, c),
        |a, b| _mm512_add_pd(a, b)
    );
    block!(
        #[target_feature(enable = "avx2,fma")]
        f32_avx2,
        f32,
        8,
        _mm256_setzero_ps(),
        |p| _mm256_loadu_ps(p),
        |p, x| _mm256_storeu_ps(p, x),
        |x| _mm256_set1_ps(x),
        |a, b, c| _mm256_fmadd_ps(a, b, c),
        |a, b| _mm256_add_ps(a, b)
    );
    block!(
        #[target_feature(enable = "avx2,fma")]
        f64_avx2,
        f64,
        4,
        _mm256_setzero_pd(),
        |p| _mm256_loadu_pd(p),
        |p, x| _mm256_storeu_pd(p, x),
        |x| _mm256_set1_pd(x),
        |a, b, c| _mm256_fmadd_pd(a, b, c),
        |a, b| _mm256_add_pd(a, b)
    );

    pub const F32_AVX512: &[[Block<f32>; 2]] = table!(f32_avx512: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
    pub const F64_AVX512: &[[Block<f64>; 2]] = table!(f64_avx512: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
    pub const F32_AVX2: &[[Block<f32>; 2]] = table!(f32_avx2: 1 2 3 4 5 6);
    pub const F64_AVX2: &[[Block<f64>; 2]] = table!(f64_avx2: 1 2 3 4 5 6);

    /// See [`super::Micro::interleave4`].
    pub unsafe fn interleave4(
        rows: [*const f32; 4],
        depth: usize,
        to: *mut f32,
        step: usize,
    ) -> usize {
        let whole = depth / 4 * 4;
        for p in (0..whole).step_by(4) {
            // SAFETY: the caller's conditions; every x86-64 has SSE.
            unsafe {
                let r = rows.map(|row| _mm_loadu_ps(row.add(p)));
                let (ab_low, ab_high) = (_mm_unpacklo_ps(r[0], r[1]), _mm_unpackhi_ps(r[0], r[1]));
                let (cd_low, cd_high) = (_mm_unpacklo_ps(r[2], r[3]), _mm_unpackhi_ps(r[2], r[3]));
                let to = to.add(p * step);
                _mm_storeu_ps(to, _mm_movelh_ps(ab_low, cd_low));
                _mm_storeu_ps(to.add(step), _mm_movehl_ps(cd_low, ab_low));
                _mm_storeu_ps(to.add(2 * step), _mm_movelh_ps(ab_high, cd_high));
                _mm_storeu_ps(to.add(3 * step), _mm_movehl_ps(cd_high, ab_high));
            }
        }
        whole
    }
}

macro_rules! portable {
    ($name:ident, $t:ty, $lanes:literal) => {
        block!(
            $name,
            $t,
            $lanes,
            [<$t>::default(); $lanes],
            |p: *const $t| p.cast::<[$t; $lanes]>().read_unaligned(),
            |p: *mut $t, x: [$t; $lanes]| p.cast::<[$t; $lanes]>().write_unaligned(x),
            |x: $t| [x; $lanes],
            |a: [$t; $lanes], b: [$t; $lanes], c: [$t; $lanes]| -> [$t; $lanes] {
                std::array::from_fn(|i| a[i] * b[i] + c[i])
            },
            |a: [$t; $lanes], b: [$t; $lanes]| -> [$t; $lanes] {
                std::array::from_fn(|i| a[i] + b[i])
            }
        );
    };
}

portable!(f32_portable, f32, 4);
portable!(f64_portable, f64, 2);

const F32_PORTABLE: &[[Block<f32>; 2]] = table!(f32_portable: 1 2 3 4 5 6);
const F64_PORTABLE: &[[Block<f64>; 2]] = table!(f64_portable: 1 2 3 4 5 6);

impl Micro for f32 {
    fn blocks(isa: Isa) -> &'static Blocks<f32> {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &Blocks {
                rows: 14,
                columns: 32,
                lanes: 16,
                table: x86::F32_AVX512,
            },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &Blocks {
                rows: 6,
                columns: 16,
                lanes: 8,
                table: x86::F32_AVX2,
            },
            _ => &Blocks {
                rows: 6,
                columns: 8,
                lanes: 4,
                table: F32_PORTABLE,
            },
        }
    }

    unsafe fn interleave4(rows: [*const f32; 4], depth: usize, to: *mut f32, step: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's conditions.
        let done = unsafe { x86::interleave4(rows, depth, to, step) };
        #[cfg(not(target_arch = "x86_64"))]
        let done = 0;
        // SAFETY: the caller's conditions.
        unsafe { interleave_rest(rows, done, depth, to, step) };
    }
}

impl Micro for f64 {
    fn blocks(isa: Isa) -> &'static Blocks<f64> {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &Blocks {
                rows: 14,
                columns: 16,
                lanes: 8,
                table: x86::F64_AVX512,
            },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &Blocks {
                rows: 6,
                columns: 8,
                lanes: 4,
                table: x86::F64_AVX2,
            },
            _ => &Blocks {
                rows: 6,
                columns: 4,
                lanes: 2,
                table: F64_PORTABLE,
            },
        }
    }

    unsafe fn interleave4(rows: [*const f64; 4], depth: usize, to: *mut f64, step: usize) {
        // SAFETY: the caller's conditions.
        unsafe { interleave_rest(rows, 0, depth, to, step) };
    }
}

/// # Safety
/// As for [`Micro::interleave4`].
unsafe fn interleave_rest<T: Copy>(
    rows: [*const T; 4],
    from: usize,
    depth: usize,
    to: *mut T,
    step: usize,
) {
    for p in from..depth {
        for (r, row) in rows.iter().enumerate() {
            // SAFETY: the caller's conditions.
            unsafe { *to.add(p * step + r) = *row.add(p) };
        }
    }
}
