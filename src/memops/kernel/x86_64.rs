//! x86-64: string instructions, vector stores that stay in cache, streams that do not, and AMD's CLZERO.
//!
//! # Sources
//!
//! Intel SDM vol. 1, 10.4.6 (caching of temporal and non-temporal data); AMD APM vol. 3, CLZERO; Rust
//! `core::arch::x86_64::_mm_sfence` (streams must be fenced by their own thread before anyone looks).

use core::arch::asm;
use core::arch::x86_64::*;
use std::arch::is_x86_feature_detected;

use super::lines::{Line, clear_lines, copy_lines};
use super::{Caches, Routines};

/// All kernels of this architecture. The first available one of each kind is the one chosen:
/// - cached: all are equally fast where they were measured, and AVX2 never lowers a clock;
/// - non-caching, 2 MiB of cold memory: streams beat CLZERO on Zen 4 (24 against 26 us), CLZERO beats them on
///   Zen 1 (84 against 116 us) and, by Linux's figures, on Zen 3; AVX-512 is what tells them apart.
#[rustfmt::skip]
pub(super) static ROUTINES: [Routines; 7] = [
    Routines { name: "avx2", non_caching: false, is_available: has_avx2, clear: avx2::clear, copy: avx2::copy },
    Routines { name: "avx512", non_caching: false, is_available: has_avx512, clear: avx512::clear, copy: avx512::copy },
    Routines { name: "rep", non_caching: false, is_available: has_erms, clear: rep::clear, copy: rep::copy },
    Routines {
        name: "avx512-stream", non_caching: true, is_available: has_avx512,
        clear: avx512_stream::clear, copy: avx512_stream::copy,
    },
    Routines { name: "clzero", non_caching: true, is_available: has_clzero, clear: clzero::clear, copy: clzero::copy },
    Routines {
        name: "avx2-stream", non_caching: true, is_available: has_avx2,
        clear: avx2_stream::clear, copy: avx2_stream::copy,
    },
    Routines {
        name: "sse2-stream", non_caching: true, is_available: || true,
        clear: sse2_stream::clear, copy: sse2_stream::copy,
    },
];

/// A cache line of every x86-64 CPU, and what CLZERO zeroes.
const LINE: usize = 64;

/// The two entry points of a kernel that works by lines, compiled with the CPU features it needs.
macro_rules! by_lines {
    ($module:ident, $line:ty, $features:literal) => {
        mod $module {
            use super::*;

            /// # Safety
            ///
            /// The CPU has the features, and the contract of [`Kernel::clear`](super::super::Kernel::clear).
            #[target_feature(enable = $features)]
            pub(super) unsafe fn clear(dst: *mut u8, len: usize) {
                // SAFETY: the contract is the same.
                unsafe { clear_lines::<$line>(dst, len) }
            }

            /// # Safety
            ///
            /// The CPU has the features, and the contract of [`Kernel::copy`](super::super::Kernel::copy).
            #[target_feature(enable = $features)]
            pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
                // SAFETY: the contract is the same.
                unsafe { copy_lines::<$line>(dst, src, len) }
            }
        }
    };
}

by_lines!(avx512, Avx512, "avx512f");
by_lines!(avx2, Avx2, "avx2");
by_lines!(clzero, Clzero, "avx2");
by_lines!(avx512_stream, Avx512Stream, "avx512f");
by_lines!(avx2_stream, Avx2Stream, "avx2");
by_lines!(sse2_stream, Sse2Stream, "sse2");

/// One 64-byte store. Volatile, in all cached kernels, because LLVM turns a loop of plain stores into `memset`.
struct Avx512;

impl Line for Avx512 {
    #[inline(always)]
    fn bytes() -> usize {
        LINE
    }

    #[inline(always)]
    unsafe fn clear(dst: *mut u8) {
        // SAFETY: the caller has AVX-512F, and an aligned writable line.
        unsafe { dst.cast::<__m512i>().write_volatile(_mm512_setzero_si512()) }
    }

    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8) {
        // SAFETY: the caller has AVX-512F, an aligned writable line, and a readable one of any alignment.
        unsafe { dst.cast::<__m512i>().write_volatile(_mm512_loadu_si512(src.cast())) }
    }
}

/// Two 32-byte stores.
struct Avx2;

impl Line for Avx2 {
    #[inline(always)]
    fn bytes() -> usize {
        LINE
    }

    #[inline(always)]
    unsafe fn clear(dst: *mut u8) {
        let dst = dst.cast::<__m256i>();
        // SAFETY: the caller has AVX2, and an aligned writable line of two vectors.
        unsafe {
            dst.write_volatile(_mm256_setzero_si256());
            dst.add(1).write_volatile(_mm256_setzero_si256());
        }
    }

    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8) {
        let (dst, src) = (dst.cast::<__m256i>(), src.cast::<__m256i>());
        // SAFETY: as in `clear`, and a readable line of any alignment at `src`.
        unsafe {
            let (low, high) = (_mm256_loadu_si256(src), _mm256_loadu_si256(src.add(1)));
            dst.write_volatile(low);
            dst.add(1).write_volatile(high);
        }
    }
}

/// One 64-byte non-temporal store; copies as [`Avx2Stream`], which took 95 us where 64-byte stores took 105.
struct Avx512Stream;

impl Line for Avx512Stream {
    #[inline(always)]
    fn bytes() -> usize {
        LINE
    }

    #[inline(always)]
    unsafe fn clear(dst: *mut u8) {
        // SAFETY: the caller has AVX-512F, and an aligned writable line.
        unsafe { _mm512_stream_si512(dst.cast(), _mm512_setzero_si512()) }
    }

    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8) {
        // SAFETY: the same contract; a CPU with AVX-512F has AVX2.
        unsafe { Avx2Stream::copy(dst, src) }
    }
}

/// Two 32-byte non-temporal stores, which the CPU combines into one line.
struct Avx2Stream;

impl Line for Avx2Stream {
    #[inline(always)]
    fn bytes() -> usize {
        LINE
    }

    #[inline(always)]
    unsafe fn clear(dst: *mut u8) {
        let dst = dst.cast::<__m256i>();
        // SAFETY: the caller has AVX2, and an aligned writable line of two vectors.
        unsafe {
            _mm256_stream_si256(dst, _mm256_setzero_si256());
            _mm256_stream_si256(dst.add(1), _mm256_setzero_si256());
        }
    }

    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8) {
        let (dst, src) = (dst.cast::<__m256i>(), src.cast::<__m256i>());
        // SAFETY: as in `clear`, and a readable line of any alignment at `src`.
        unsafe {
            let (low, high) = (_mm256_loadu_si256(src), _mm256_loadu_si256(src.add(1)));
            _mm256_stream_si256(dst, low);
            _mm256_stream_si256(dst.add(1), high);
        }
    }
}

/// Four 16-byte non-temporal stores, on every x86-64 CPU.
struct Sse2Stream;

impl Line for Sse2Stream {
    #[inline(always)]
    fn bytes() -> usize {
        LINE
    }

    #[inline(always)]
    unsafe fn clear(dst: *mut u8) {
        let dst = dst.cast::<__m128i>();
        for quarter in 0..4 {
            // SAFETY: SSE2 is in the architecture; the caller has an aligned writable line of four vectors.
            unsafe { _mm_stream_si128(dst.add(quarter), _mm_setzero_si128()) }
        }
    }

    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8) {
        let (dst, src) = (dst.cast::<__m128i>(), src.cast::<__m128i>());
        for quarter in 0..4 {
            // SAFETY: as in `clear`, and a readable line of any alignment at `src`.
            unsafe { _mm_stream_si128(dst.add(quarter), _mm_loadu_si128(src.add(quarter))) }
        }
    }
}

/// AMD's CLZERO, which zeroes a line without reading it or keeping it; copies as [`Avx2Stream`].
struct Clzero;

impl Line for Clzero {
    #[inline(always)]
    fn bytes() -> usize {
        LINE
    }

    #[inline(always)]
    unsafe fn clear(dst: *mut u8) {
        // SAFETY: the caller has CLZERO, which writes zero to the line that holds the address in rax, here a
        // whole writable line, and changes neither registers, flags nor stack.
        unsafe { asm!("clzero", in("rax") dst, options(nostack, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8) {
        // SAFETY: the same contract.
        unsafe { Avx2Stream::copy(dst, src) }
    }
}

/// Makes this thread's non-temporal stores and CLZEROs as ordered and as visible as ordinary stores.
pub(super) fn fence() {
    // SAFETY: SSE is in the architecture.
    unsafe { _mm_sfence() }
}

/// Not PREFETCHW, which older CPUs lack: a line that no other core has comes in exclusive, and is written as fast.
#[inline]
pub(super) fn fetch(line: *const u8) {
    // SAFETY: a hint; no address faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

/// `rep stosb` and `rep movsb`, fast where CPUID says ERMS.
mod rep {
    use super::asm;

    /// # Safety
    ///
    /// As [`Kernel::clear`](super::super::Kernel::clear).
    pub(super) unsafe fn clear(dst: *mut u8, len: usize) {
        // SAFETY: stores al to the caller's rcx = `len` bytes at rdi, upwards: the direction flag is clear by
        // the rules of inline assembly. No stack, and no flag is changed.
        unsafe {
            asm!(
                "rep stosb",
                inout("rcx") len => _, inout("rdi") dst => _, in("al") 0u8,
                options(nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    ///
    /// As [`Kernel::copy`](super::super::Kernel::copy).
    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: as in `clear`, reading as many bytes at rsi, which do not overlap.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _, inout("rdi") dst => _, inout("rsi") src => _,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// AVX2 in the CPU, and vector registers saved by the system.
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
}

/// AVX-512F likewise.
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
}

/// CPUID 7 EBX bit 9: enhanced `rep movsb` and `rep stosb`.
fn has_erms() -> bool {
    leaf(7, 0).is_some_and(|leaf| leaf.ebx & 1 << 9 != 0)
}

/// CPUID 8000_0008h EBX bit 0; and AVX2, by which this kernel copies.
fn has_clzero() -> bool {
    has_avx2() && leaf(0x8000_0008, 0).is_some_and(|leaf| leaf.ebx & 1 != 0)
}

/// A leaf of CPUID, or `None` if this CPU does not have it. Under a hypervisor each call costs microseconds.
fn leaf(number: u32, part: u32) -> Option<CpuidResult> {
    let highest = __cpuid(number & 0x8000_0000).eax;
    (highest & 0x8000_0000 == number & 0x8000_0000 && number <= highest).then(|| __cpuid_count(number, part))
}

/// Ticks of the time stamp counter that two loads side by side take, about 30 of them for the measuring.
///
/// # Safety
///
/// Both are valid for reading a byte.
pub(super) unsafe fn load_ticks(lines: [*const u8; 2]) -> Option<u64> {
    // SAFETY: SSE2 and the counter are in the architecture (a system that forbids user mode to read the counter
    // does not run std's own clocks either). The loads are the caller's promise; volatile, because nobody uses them.
    unsafe {
        // The fences keep the loads between the readings (Intel SDM vol. 2, RDTSC; serializing on AMD under Linux).
        _mm_lfence();
        let start = _rdtsc();
        _mm_lfence();
        std::hint::black_box(lines.map(|line| line.read_volatile()));
        _mm_lfence();
        Some(_rdtsc().wrapping_sub(start))
    }
}

/// The data caches that CPUID describes: leaf 8000_001Dh on AMD with topology extensions, else leaf 4.
pub(super) fn caches() -> Caches {
    let has_topology_extensions = leaf(0x8000_0001, 0).is_some_and(|leaf| leaf.ecx & 1 << 22 != 0);
    let number = if has_topology_extensions { 0x8000_001D } else { 4 };
    let mut caches = Caches::default();
    // A list that ends with type 0; no CPU describes as many as 16.
    for part in 0..16 {
        let Some(cache) = leaf(number, part).filter(|leaf| leaf.eax & 31 != 0) else { break };
        let is_instruction = cache.eax & 31 == 2;
        let field = |value: u32, low: u32, bits: u32| (value >> low & ((1 << bits) - 1)) as usize + 1;
        let lines = field(cache.ebx, 12, 10) * field(cache.ebx, 22, 10) * (cache.ecx as usize + 1);
        let bytes = lines * field(cache.ebx, 0, 12);
        match cache.eax >> 5 & 7 {
            2 if !is_instruction => caches.level_2 = bytes,
            3.. if !is_instruction => caches.level_3 = bytes,
            _ => {}
        }
    }
    caches
}
