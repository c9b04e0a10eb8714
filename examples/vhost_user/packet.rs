//! Packets whose every byte follows from their number, so that whoever gets one back can tell whether it is whole.

/// Shortest and longest Ethernet frame, without the checksum that hardware adds.
pub const LEN_MIN: usize = 64;
pub const LEN_MAX: usize = 1514;

const DESTINATION: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const SOURCE: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];
/// For local experiments (IEEE 802).
const ETHERTYPE: [u8; 2] = 0x88b5_u16.to_be_bytes();
/// Where the number and the pattern start; the checksum is the last eight bytes.
const NUMBER: usize = 16;
const PATTERN: usize = 24;
const CHECKSUM_LEN: usize = 8;

/// What is wrong with a packet that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Too short or too long for any packet.
    Length(usize),
    /// The checksum that it carries is not that of its bytes.
    Checksum,
    /// It is consistent in itself, and not what was sent under its number.
    Contents(u64),
}

/// Bytes of the packet with this number: all lengths from [`LEN_MIN`] to [`LEN_MAX`].
pub fn len(number: u64) -> usize {
    LEN_MIN + (mix(number) % (LEN_MAX - LEN_MIN + 1) as u64) as usize
}

/// Writes the packet with this number to the start of `buffer`, and returns its length.
pub fn write(number: u64, buffer: &mut [u8; LEN_MAX]) -> usize {
    let len = len(number);
    let packet = &mut buffer[..len];
    packet[..6].copy_from_slice(&DESTINATION);
    packet[6..12].copy_from_slice(&SOURCE);
    packet[12..14].copy_from_slice(&ETHERTYPE);
    packet[14..NUMBER].copy_from_slice(&(len as u16).to_be_bytes());
    packet[NUMBER..PATTERN].copy_from_slice(&number.to_be_bytes());
    let end = len - CHECKSUM_LEN;
    let mut state = mix(number ^ 0x5eed);
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state.to_be_bytes()
    };
    let (words, rest) = packet[PATTERN..end].as_chunks_mut::<8>();
    words.fill_with(&mut next);
    rest.copy_from_slice(&next()[..rest.len()]);
    let sum = checksum(&packet[..end]);
    packet[end..].copy_from_slice(&sum.to_be_bytes());
    len
}

/// The number of a packet that is, byte for byte, what [`write`] made. `expected` is room to make it again.
pub fn check(packet: &[u8], expected: &mut [u8; LEN_MAX]) -> Result<u64, Damage> {
    if !(LEN_MIN..=LEN_MAX).contains(&packet.len()) {
        return Err(Damage::Length(packet.len()));
    }
    let (covered, sum) = packet.split_at(packet.len() - CHECKSUM_LEN);
    if sum != checksum(covered).to_be_bytes() {
        return Err(Damage::Checksum);
    }
    let number = u64::from_be_bytes(std::array::from_fn(|at| packet[NUMBER + at]));
    let len = write(number, expected);
    if packet == &expected[..len] { Ok(number) } else { Err(Damage::Contents(number)) }
}

fn checksum(bytes: &[u8]) -> u64 {
    let add = |sum: u64, word| (sum ^ u64::from_be_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    add(words.iter().copied().fold(bytes.len() as u64, add), last)
}

/// Neighbouring numbers give unrelated ones.
fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
