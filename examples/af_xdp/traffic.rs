//! Numbered frames out through a packet socket, back by the echo, each one checked; and what the transport dropped.

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

use hugearena::pool::Pool;
use hugearena::{Arena, PageSize};

use crate::bpf::Redirection;
use crate::echo::Echo;
use crate::frames::FRAME;
use crate::network::{self, FAR, NEAR, PacketSocket};

/// For local experiments, by IEEE 802.
const ETHERTYPE: u16 = 0x88b5;
const HERE: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
const THERE: [u8; 6] = [0x02, 0, 0, 0, 0, 2];
const HEADER: usize = 14;
const LONGEST: usize = 1514;
/// Frames on their way at most: a veth interface queues 256.
const WINDOW: u64 = 128;
/// Waits of 200 ms without a frame before those on their way count as lost.
const SILENCE: u32 = 50;
/// The number of frames that are not counted.
const PROBE: u64 = u64::MAX;

pub struct Options {
    pub packets: u64,
    pub page_size: PageSize,
    pub umem_bytes: usize,
}

#[derive(Debug)]
pub struct Report {
    pub obtained: String,
    pub sent: u64,
    pub echoed: u64,
    /// Came back other than they were sent, twice, or unasked.
    pub corrupted: u64,
    /// What interfaces, sockets and rings say that they dropped.
    pub dropped: u64,
    /// Of the whole process, after the first tenth of the packets.
    pub steady_faults: u64,
    pub elapsed: Duration,
}

impl Report {
    pub fn lost(&self) -> u64 {
        self.sent - self.echoed
    }

    /// Nothing corrupted, and nothing lost that the transport does not report.
    pub fn is_sound(&self) -> bool {
        self.corrupted == 0 && self.lost() <= self.dropped
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { sent, echoed, corrupted, dropped, steady_faults, .. } = self;
        let rate = *echoed as f64 / self.elapsed.as_secs_f64();
        writeln!(f, "{}", self.obtained)?;
        writeln!(f, "{sent} packets sent, {echoed} echoed ({rate:.0}/s), {} lost, {corrupted} corrupted", self.lost())?;
        writeln!(f, "{dropped} dropped by the transport, by its own account")?;
        write!(f, "{steady_faults} page faults after the first tenth")
    }
}

pub fn run(options: &Options) -> Result<Report, Box<dyn Error>> {
    let arena = Arena::builder().page_size(options.page_size).capacity(options.umem_bytes).open()?;
    let obtained = arena.obtained().to_string();
    let frames = Pool::builder().object_size(FRAME).align(FRAME).packed().count(arena.capacity() / FRAME);
    let pool = frames.within_page(PageSize::base()).build(&arena)?;
    let (stop, echo_dropped) = (AtomicBool::new(false), AtomicU64::new(0));
    let (thread_ids, far_thread) = mpsc::channel();
    let (pair_made, pair_is_made) = mpsc::channel();
    let (ready, is_ready) = mpsc::channel();
    // The pair is gone as soon as either thread is, and with it what the interfaces have counted.
    let both_counted = Barrier::new(2);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let result = echo(&pool, thread_ids, pair_is_made, ready, &stop);
            both_counted.wait();
            result.map(|dropped| echo_dropped.store(dropped, SeqCst)).map_err(|error| error.to_string())
        });
        // A thread of its own, for a namespace is a thread's.
        let sender = scope.spawn(|| {
            let result = near_socket(far_thread, pair_made, is_ready);
            let result = result.and_then(|socket| send_and_check(&socket, options.packets));
            stop.store(true, SeqCst);
            both_counted.wait();
            result.map_err(|error| error.to_string())
        });
        let sent = sender.join().map_err(|_| "the sender panicked")?;
        let echoed = echo.join().map_err(|_| "the echo panicked")?;
        let report = match (sent, echoed) {
            (Ok(report), Ok(())) => report,
            // Either may be what made the other one fail.
            (Err(sender), Err(echo)) => return Err(format!("{echo}; {sender}").into()),
            (Err(error), Ok(())) | (Ok(_), Err(error)) => return Err(error.into()),
        };
        if pool.stats().in_use != 0 {
            return Err(format!("frames did not come home: {}", pool.stats()).into());
        }
        Ok(Report { obtained, dropped: report.dropped + echo_dropped.load(SeqCst), ..report })
    })
}

/// The far side: an AF_XDP socket that sends everything back until it is told to stop; returns what was dropped.
fn echo(
    pool: &Pool,
    thread_ids: mpsc::Sender<libc::pid_t>,
    pair_is_made: mpsc::Receiver<()>,
    ready: mpsc::Sender<()>,
    stop: &AtomicBool,
) -> Result<u64, Box<dyn Error>> {
    network::enter_own_namespace().map_err(|error| format!("a network namespace: {error}"))?;
    thread_ids.send(network::thread_id())?;
    pair_is_made.recv().map_err(|_| "there is no veth pair")?;
    network::bring_up(FAR)?;
    let mut echo = Echo::bind(FAR, pool.clone())?;
    let redirection = Redirection::attach(network::index_of(FAR)?, ETHERTYPE, echo.as_raw_fd());
    let redirection = redirection.map_err(|error| format!("the XDP program: {error}"))?;
    echo.poll();
    ready.send(())?;
    while !stop.load(SeqCst) {
        if echo.poll() == 0 {
            echo.wait();
        }
    }
    // Before the socket: nothing is redirected to it any more.
    drop(redirection);
    let seen = echo.statistics()?;
    let lost = seen.rx_dropped + seen.rx_ring_full + seen.rx_invalid_descs + seen.tx_invalid_descs;
    Ok(lost + network::dropped(FAR)?)
}

fn near_socket(
    far_thread: mpsc::Receiver<libc::pid_t>,
    pair_made: mpsc::Sender<()>,
    is_ready: mpsc::Receiver<()>,
) -> Result<PacketSocket, Box<dyn Error>> {
    network::enter_own_namespace().map_err(|error| format!("a network namespace: {error}"))?;
    network::make_pair(far_thread.recv().map_err(|_| "the echo did not start")?)?;
    pair_made.send(())?;
    is_ready.recv().map_err(|_| "the echo did not start")?;
    Ok(PacketSocket::open(network::index_of(NEAR)?, ETHERTYPE)?)
}

/// The near side: keeps [`WINDOW`] frames on their way, and checks each that comes back.
fn send_and_check(socket: &PacketSocket, packets: u64) -> Result<Report, Box<dyn Error>> {
    let (mut frame, mut room, mut expected) = ([0; LONGEST], [0; LONGEST + 1], [0; LONGEST]);
    // Not zeroes, which would be a page fault each 4096 frames later.
    let mut awaited = vec![true; packets as usize];
    wait_for_path(socket)?;
    let (mut sent, mut back, mut lost, mut corrupted, mut silence) = (0, 0, 0, 0, 0);
    let (start, mut faults_before) = (Instant::now(), 0);
    while sent < packets || back + lost < sent {
        // In bursts, for each change of threads costs more than a frame.
        let burst = if sent - back - lost <= WINDOW / 2 { WINDOW - (sent - back - lost) } else { 0 };
        for _ in 0..burst.min(packets - sent) {
            let len = write_frame(&mut frame, sent, THERE, HERE);
            socket.send(&frame[..len])?;
            sent += 1;
            if sent == packets / 10 {
                faults_before = page_faults();
            }
        }
        let received = socket.receive(&mut room)?;
        silence = if received.is_some() { 0 } else { silence + 1 };
        match received {
            // The echo may only not have got to run.
            None if silence < SILENCE => {}
            // Those that are on their way do not come any more.
            None => lost = sent - back,
            Some(frame) if number_of(frame) == Some(PROBE) => {}
            Some(frame) => match number_of(frame).filter(|number| *number < sent && awaited[*number as usize]) {
                Some(number) if is_frame(frame, number, &mut expected) => {
                    awaited[number as usize] = false;
                    back += 1;
                    lost = lost.min(sent - back);
                }
                _ => corrupted += 1,
            },
        }
    }
    let (elapsed, steady_faults) = (start.elapsed(), page_faults() - faults_before);
    let dropped = socket.dropped()? + network::dropped(NEAR)?;
    Ok(Report { obtained: String::new(), sent, echoed: back, corrupted, dropped, steady_faults, elapsed })
}

/// Sends frames that do not count until one comes back: a new interface drops frames for a moment, unaccounted.
fn wait_for_path(socket: &PacketSocket) -> Result<(), Box<dyn Error>> {
    let (mut frame, mut room) = ([0; LONGEST], [0; LONGEST + 1]);
    let len = write_frame(&mut frame, PROBE, THERE, HERE);
    for _ in 0..300 {
        socket.send(&frame[..len])?;
        if socket.receive(&mut room)?.is_some() {
            return Ok(());
        }
    }
    Err("no frame comes back".into())
}

/// Writes frame `number` and returns its length; every byte follows from the number.
fn write_frame(frame: &mut [u8; LONGEST], number: u64, to: [u8; 6], from: [u8; 6]) -> usize {
    let len = 60 + (number % (LONGEST as u64 - 60) * 37 % (LONGEST as u64 - 60)) as usize;
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..HEADER].copy_from_slice(&ETHERTYPE.to_be_bytes());
    for (index, part) in frame[HEADER..len].chunks_mut(8).enumerate() {
        // The number itself first, then words that differ from frame to frame and from place to place.
        let word = number.wrapping_add(index as u64).wrapping_mul(if index == 0 { 1 } else { 0x9e37_79b9_7f4a_7c15 });
        part.copy_from_slice(&word.to_be_bytes()[..part.len()]);
    }
    len
}

/// Whether this is frame `number` as the echo sends it back.
fn is_frame(frame: &[u8], number: u64, room: &mut [u8; LONGEST]) -> bool {
    let len = write_frame(room, number, HERE, THERE);
    frame == &room[..len]
}

fn number_of(frame: &[u8]) -> Option<u64> {
    frame.get(HEADER..HEADER + 8)?.try_into().ok().map(u64::from_be_bytes)
}

/// Minor and major, all threads.
fn page_faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage fills the struct; zeroes are valid numbers.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    (usage.ru_minflt + usage.ru_majflt) as u64
}
