//! The heap under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oracle::run(data));
