//! This target must fail within seconds. It proves that coverage guides the fuzzer and that failures are detected.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let secret = *b"lambda";
    let known = secret.iter().zip(data).take_while(|(wanted, byte)| wanted == byte).count();
    // One branch per byte, so each correct byte is new coverage. Without coverage, this takes 2^48 attempts.
    let depth = match known {
        0 => 0,
        1 => seen(1),
        2 => seen(2),
        3 => seen(3),
        4 => seen(4),
        5 => seen(5),
        _ => panic!("the canary was found"),
    };
    assert!(depth < secret.len());
});

#[inline(never)]
fn seen(depth: usize) -> usize {
    std::hint::black_box(depth)
}
