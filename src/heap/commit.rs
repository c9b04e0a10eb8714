//! On which pages a step of growth lies: the sizes asked for, in their order, then transparent huge pages, then base
//! pages.
//!
//! A size whose pool had nothing is not asked again for the next few steps. Each step that did not get the first
//! size is counted, and why is kept for [`HeapStats`](super::HeapStats).

use super::Heap;
use super::growth::{Growth, Plan};
use super::options::Options;
use super::space::{
    Backing, CHUNK_BYTES, CHUNK_UNITS, EAGER_CHUNKS, LARGEST_PAGE_LOG2, SMALLEST_PAGE_LOG2, Space, chunks_in,
};
use crate::error::Errno;
use crate::page_size::PageSize;
use crate::supply;
use crate::sys::{EFAULT, ENOMEM, memory};

/// Steps that do not ask for pages of a size after a step that got none.
const SKIPS: u32 = 8;
/// Page sizes that the heap takes: every power of two from the smallest to the largest.
const SIZES: usize = (LARGEST_PAGE_LOG2 - SMALLEST_PAGE_LOG2 + 1) as usize;

/// Why pages of some size were not had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The system said so.
    System(Errno),
    /// They are left for others.
    Spare,
    /// Children of fork may lose them.
    ForkUnsafe,
    /// The range of addresses starts at no multiple of their size.
    Range,
}

/// What the steps remember about one page size.
#[derive(Clone, Copy, Debug)]
struct Tried {
    /// Steps still to go without asking for it.
    skips: u32,
    /// Steps that did not get it.
    refused: u64,
    /// Why the last one did not that asked.
    why: Option<Refusal>,
}

/// What growth remembers about the kinds of pages.
#[derive(Debug)]
pub(crate) struct Pages {
    options: Options,
    tried: [Tried; SIZES],
    /// Whether the kernel has transparent huge pages on; unknown before the first fall, and while it cannot be seen.
    transparent: Option<bool>,
    /// Steps that did not get the best page size.
    fallbacks: u64,
    /// The size that was refused last.
    last_refused: Option<PageSize>,
}

impl Pages {
    pub(crate) const fn new() -> Pages {
        let tried = Tried { skips: 0, refused: 0, why: None };
        Pages { options: Options::DEFAULT, tried: [tried; SIZES], transparent: None, fallbacks: 0, last_refused: None }
    }

    pub(crate) fn set_options(&mut self, options: Options) {
        self.options = options;
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Steps that fell to a smaller page size.
    pub(crate) fn fallbacks(&self) -> u64 {
        self.fallbacks
    }

    /// The size refused last, and why.
    pub(crate) fn last_refusal(&self) -> Option<(PageSize, Refusal)> {
        let size = self.last_refused?;
        Some((size, self.tried[index(size)].why?))
    }

    /// Steps that did not get pages of `size`.
    pub(crate) fn refused(&self, size: PageSize) -> u64 {
        self.tried[index(size)].refused
    }

    /// Whether a step may ask for pages of `size` now; counts one that may not.
    fn may_ask(&mut self, space: &Space, size: PageSize) -> bool {
        if !space.has_place_for(size) {
            self.refuse(size, Refusal::Range);
            return false;
        }
        if size.log2() == LARGEST_PAGE_LOG2 && !self.options.fork_unsafe {
            self.refuse(size, Refusal::ForkUnsafe);
            return false;
        }
        // With nothing behind it, it is asked every time.
        let is_last = self.options.strict && self.options.page_sizes.last() == Some(&size);
        let tried = &mut self.tried[index(size)];
        if tried.skips > 0 && !is_last {
            tried.skips -= 1;
            tried.refused += 1;
            return false;
        }
        true
    }

    fn refuse(&mut self, size: PageSize, why: Refusal) {
        let tried = &mut self.tried[index(size)];
        tried.refused += 1;
        tried.why = Some(why);
        self.last_refused = Some(size);
    }

    /// Whether the last step that asked for pages of `size` found too few in the pool.
    fn is_short_of(&self, size: PageSize) -> bool {
        matches!(self.tried[index(size)].why, Some(Refusal::Spare | Refusal::System(ENOMEM)))
    }

    fn skip(&mut self, size: PageSize) {
        self.tried[index(size)].skips = SKIPS;
    }

    /// Pages of that size have just gone back to the pool.
    pub(crate) fn ask_again(&mut self, size: PageSize) {
        self.tried[index(size)].skips = 0;
    }
}

fn index(size: PageSize) -> usize {
    (size.log2() - SMALLEST_PAGE_LOG2) as usize
}

/// How many of `extra` pages a step may take from the pool besides the `need`, and whether it may take those: at most
/// half of what is free beyond the need, and never the spare ones.
fn share(size: PageSize, need: u32, extra: u32, spare: u64) -> Option<u32> {
    if extra == 0 && spare == 0 {
        return Some(0);
    }
    let free = supply::available_pages_now(size).unwrap_or(0);
    let beyond = free.saturating_sub(spare).checked_sub(u64::from(need));
    if beyond.is_none() && spare > 0 {
        return None;
    }
    let most = (free / 2).saturating_sub(u64::from(need)).min(beyond.unwrap_or(0));
    Some(most.min(u64::from(extra)) as u32)
}

impl Heap {
    /// Commits what `place` says for pages of so many chunks, on the best pages to be had. Where it says nothing,
    /// pages of that size are passed over. Before it falls to ordinary memory, or to none, free chunks of the heap go back
    /// to the pool if that then has enough.
    pub(crate) fn commit_best(
        &self,
        space: &Space,
        growth: &mut Growth,
        mut place: impl FnMut(&mut Growth, u32) -> Option<Plan>,
    ) -> Option<(Plan, u32, Backing)> {
        let (tried, fallbacks) = (growth.pages.tried, growth.pages.fallbacks);
        let mut outcome = self.commit_hugetlb(space, growth, &mut place);
        if let Err(Some(short)) = outcome
            && self.has_pieces_for(growth, short)
            && self.give_back(space, growth) > 0
        {
            // Whether this step falls is for the second try to say.
            (growth.pages.tried, growth.pages.fallbacks) = (tried, fallbacks);
            outcome = self.commit_hugetlb(space, growth, &mut place);
        }
        if outcome.is_ok() {
            return outcome.ok();
        }
        if growth.pages.options().strict {
            return None;
        }
        let plan = place(growth, 1).and_then(|plan| growth.within_limit(plan))?;
        let (count, backing) = self.commit_ordinary(space, growth, &plan)?;
        Some((plan, count, backing))
    }

    /// As [`commit_best`](Self::commit_best), on hugetlb pages only; else the last page size that was asked for and whose
    /// pool was short, with how many chunks were needed.
    fn commit_hugetlb(
        &self,
        space: &Space,
        growth: &mut Growth,
        place: &mut impl FnMut(&mut Growth, u32) -> Option<Plan>,
    ) -> Result<(Plan, u32, Backing), Option<(PageSize, u32)>> {
        let (mut is_refused, mut short) = (false, None);
        for size in growth.pages.options().page_sizes {
            if !growth.pages.may_ask(space, *size) {
                is_refused = true;
                continue;
            }
            let Some(plan) = place(growth, chunks_in(*size)).and_then(|plan| growth.within_limit(plan)) else {
                continue;
            };
            if let Some(count) = self.commit_huge(space, growth, &plan, *size) {
                growth.pages.fallbacks += u64::from(is_refused);
                return Ok((plan, count, Backing::Hugetlb(*size)));
            }
            is_refused = true;
            if growth.pages.is_short_of(*size) {
                short = Some((*size, plan.need));
            }
        }
        growth.pages.fallbacks += u64::from(is_refused);
        Err(short)
    }

    /// Whether what the pool has, with what is free in the heap on pages of `size`, may be enough for `need` chunks on such
    /// pages. Other memory would help the pool with none, and cost its next owner page faults.
    fn has_pieces_for(&self, growth: &Growth, (size, need): (PageSize, u32)) -> bool {
        let held = u64::from(growth.chunks_on(Backing::Hugetlb(size)));
        if held == 0 {
            return false;
        }
        let pages = supply::available_pages_now(size).unwrap_or(0).saturating_sub(growth.pages.options().spare_pages);
        let lacking = u64::from(need).saturating_sub(pages.saturating_mul(u64::from(chunks_in(size))));
        lacking <= held && self.runs.lock().free_units() >= lacking * u64::from(CHUNK_UNITS)
    }

    /// Commits the need of a plan, and its extra as far as it is ours to take, on pages of `size`; returns how many
    /// chunks.
    #[expect(unsafe_code)]
    fn commit_huge(&self, space: &Space, growth: &mut Growth, plan: &Plan, size: PageSize) -> Option<u32> {
        let in_page = chunks_in(size);
        let Some(extra) = share(size, plan.need / in_page, plan.extra, growth.pages.options().spare_pages) else {
            growth.pages.refuse(size, Refusal::Spare);
            return None;
        };
        let mut count = plan.need + extra * in_page;
        loop {
            // SAFETY: the growth lock is held by our caller, `first` on is vacant or room; whole pages, and at their
            // alignment, by the plan's contract.
            match unsafe { space.commit(plan.first, count, Backing::Hugetlb(size)) } {
                Ok(()) => {
                    growth.count_committed(plan.first, count, Backing::Hugetlb(size));
                    return Some(count);
                }
                Err(_) if count > plan.need => count = plan.need,
                Err(errno) => {
                    // A long block that does not fit says nothing about the pool. One page does; and where a
                    // cgroup refuses pages one by one, each try clears those that it does not refuse.
                    if plan.need == in_page || errno == EFAULT {
                        growth.pages.skip(size);
                    }
                    growth.pages.refuse(size, Refusal::System(errno));
                    return None;
                }
            }
        }
    }

    /// Commits memory that is not hugetlb: with the extra if it can be had, transparent huge pages if they are on.
    #[expect(unsafe_code)]
    fn commit_ordinary(&self, space: &Space, growth: &mut Growth, plan: &Plan) -> Option<(u32, Backing)> {
        // What exceeds the machine would be granted, and then end in an OOM kill.
        let total = memory::total_memory_bytes();
        if total != 0 && u64::from(plan.need) * CHUNK_BYTES as u64 > total {
            return None;
        }
        if growth.pages.transparent.is_none() {
            growth.pages.transparent = supply::transparent_huge_now();
        }
        // Where nobody knows, they are asked for: the kernel refuses if it has none.
        let backing = if growth.pages.transparent.unwrap_or(true) { Backing::Transparent } else { Backing::Base };
        let tries = [(plan.need + plan.extra, backing), (plan.need, backing), (plan.need, Backing::Base)];
        // SAFETY: as in `commit_huge`.
        let commit = |&(count, backing): &_| unsafe { space.commit(plan.first, count, backing) }.is_ok();
        let (count, backing) = tries.into_iter().find(commit)?;
        growth.count_committed(plan.first, count, backing);
        Some((count, backing))
    }

    /// Commits the memory that is to be there from the start.
    pub(crate) fn grow_initially(&self, space: &Space) {
        let mut growth = self.growth.lock();
        let options = *growth.pages.options();
        let wanted = options.initial_bytes.div_ceil(CHUNK_BYTES as u64).min(u64::from(space.chunk_count())) as u32;
        let mut left = wanted;
        for size in options.page_sizes {
            if left == 0 || !growth.pages.may_ask(space, *size) {
                continue;
            }
            let is_last = options.page_sizes.last() == Some(size);
            let pages = if is_last { left.div_ceil(chunks_in(*size)) } else { left / chunks_in(*size) };
            left = left.saturating_sub(self.commit_up_to(space, &mut growth, *size, pages));
        }
        if options.page_sizes.first().is_some_and(|size| growth.pages.refused(*size) > 0) {
            growth.pages.fallbacks += 1;
        }
        let half = memory::total_memory_bytes() / 2 / CHUNK_BYTES as u64;
        if options.strict {
            return;
        }
        left = left.min(half.min(u64::from(u32::MAX)) as u32);
        while left > 0 {
            // Steps that are populated at once.
            let need = u64::from(left.min(EAGER_CHUNKS)).min(growth.allowed_chunks()) as u32;
            if need == 0 {
                return;
            }
            let plan = growth.at_top(space, need, 1).and_then(|plan| growth.within_limit(plan));
            let Some((plan, (count, backing))) =
                plan.and_then(|plan| Some((plan, self.commit_ordinary(space, &mut growth, &plan)?)))
            else {
                return;
            };
            self.publish(space, &plan, count, backing);
            left = left.saturating_sub(count);
        }
    }

    /// Commits `pages` pages of `size`, or as many as there are, as free memory; returns chunks.
    fn commit_up_to(&self, space: &Space, growth: &mut Growth, size: PageSize, pages: u32) -> u32 {
        let mut pages = pages;
        // Others take and give back pages meanwhile: a few tries, each with what there is then.
        for _ in 0..4 {
            let allowed = growth.allowed_chunks() / u64::from(chunks_in(size));
            pages = pages.min(allowed.min(u64::from(u32::MAX)) as u32);
            let plan = pages.checked_mul(chunks_in(size)).filter(|need| *need > 0);
            let Some(plan) = plan.and_then(|need| growth.at_top(space, need, chunks_in(size))) else {
                return 0;
            };
            if let Some(count) = self.commit_huge(space, growth, &plan, size) {
                self.publish(space, &plan, count, Backing::Hugetlb(size));
                return count;
            }
            let spare = growth.pages.options().spare_pages;
            let free = supply::available_pages_now(size).unwrap_or(0).saturating_sub(spare);
            pages = free.min(u64::from(pages - 1)) as u32;
        }
        0
    }

    /// Makes committed memory a free run.
    pub(crate) fn publish(&self, space: &Space, plan: &Plan, count: u32, backing: Backing) {
        let mut runs = self.runs.lock();
        space.set_backing(plan.first, count, backing);
        runs.insert(space, plan.first * CHUNK_UNITS, count * CHUNK_UNITS);
    }

    /// Whether a page that children of fork may lose is not there any more.
    pub(crate) fn has_lost_pages(&self, space: &Space) -> bool {
        let growth = self.growth.lock();
        let largest = growth.pages.options().page_sizes.iter().find(|size| size.log2() == LARGEST_PAGE_LOG2);
        let Some(backing) = largest.map(|size| Backing::Hugetlb(*size)) else {
            return false;
        };
        let mut pages = (0..growth.top()).step_by(backing.page_chunks() as usize);
        growth.chunks_on(backing) > 0 && pages.any(|chunk| space.backing(chunk) == backing && !space.is_present(chunk))
    }
}
