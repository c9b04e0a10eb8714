//! Packets: a header that is written where they arrive and checked where they are worked on.

/// What a program looks at: Ethernet, IP and UDP headers, and the start of the payload.
const HEADER: usize = 64;

/// Writes packet number `number`.
pub fn write(bytes: &mut [u8], number: u64) {
    let header: &mut [u8; HEADER] = bytes.first_chunk_mut().expect("longer than a header");
    for (at, word) in header.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = word_of(number, at).to_le_bytes();
    }
}

/// Whether that is packet number `number`, whole.
pub fn is_good(bytes: &[u8], number: u64) -> bool {
    let header: &[u8; HEADER] = bytes.first_chunk().expect("longer than a header");
    let words = header.as_chunks::<8>().0.iter().enumerate();
    words.fold(0, |wrong, (at, word)| wrong | (u64::from_le_bytes(*word) ^ word_of(number, at))) == 0
}

fn word_of(number: u64, at: usize) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(at as u32 * 7)
}
