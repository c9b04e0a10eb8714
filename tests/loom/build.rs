//! Tells `src/ring`, whose slots are loom's cells here and plain memory there.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(loom)");
    println!("cargo::rustc-cfg=loom");
}
