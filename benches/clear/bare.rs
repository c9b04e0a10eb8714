//! The barest loops over whole lines that fill memory without caching it: what the library's kernels are held to.

/// One instruction repeated over a region, and a fence.
#[derive(Clone, Copy)]
pub struct Bare {
    /// The kernel of the library that uses the same instruction.
    pub kernel: &'static str,
    /// Zeroes a region.
    ///
    /// Safety: the CPU has the kernel of that name; the region is valid for writing, aligned to 64 bytes and a
    /// multiple of 64 bytes long.
    clear: unsafe fn(*mut u8, usize),
}

impl Bare {
    /// Those that this CPU can run.
    pub fn available() -> Vec<Bare> {
        let has = |bare: &&Bare| hugearena::memops::Kernel::named(bare.kernel).is_some();
        loops::ALL.iter().filter(has).copied().collect()
    }

    /// Zeroes `len` bytes at `dst`.
    ///
    /// # Safety
    ///
    /// They are valid for writing and nobody else uses them.
    pub unsafe fn clear(self, dst: *mut u8, len: usize) {
        assert!(dst.addr().is_multiple_of(64) && len.is_multiple_of(64));
        // SAFETY: the caller's promise and the line above; `available` asked the CPU.
        unsafe { (self.clear)(dst, len) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod loops {
    pub static ALL: [super::Bare; 0] = [];
}

#[cfg(target_arch = "x86_64")]
mod loops {
    use core::arch::asm;

    use super::Bare;

    pub static ALL: [Bare; 3] = [
        Bare { kernel: "avx512-stream", clear: avx512_stream },
        Bare { kernel: "avx2-stream", clear: avx2_stream },
        Bare { kernel: "clzero", clear: clzero },
    ];

    /// A loop that runs `$body` for every line between rdi and rdx, after `$before`.
    macro_rules! per_line {
        ($name:ident, $features:literal, $before:literal, $($body:literal),*) => {
            /// # Safety
            ///
            /// As [`Bare::clear`].
            #[target_feature(enable = $features)]
            unsafe fn $name(dst: *mut u8, len: usize) {
                // SAFETY: writes zeroes from rdi up to rdx, both multiples of 64, which the caller owns.
                unsafe {
                    asm!(
                        $before, "2:", $($body,)* "add rax, 64", "cmp rax, rdx", "jb 2b", "sfence", "vzeroupper",
                        inout("rax") dst => _, in("rdx") dst.add(len), out("ymm0") _, options(nostack)
                    );
                }
            }
        };
    }

    per_line!(avx512_stream, "avx512f", "vpxorq zmm0, zmm0, zmm0", "vmovntdq [rax], zmm0");
    per_line!(avx2_stream, "avx2", "vpxor ymm0, ymm0, ymm0", "vmovntdq [rax], ymm0", "vmovntdq [rax + 32], ymm0");
    per_line!(clzero, "avx2", "", "clzero");
}
