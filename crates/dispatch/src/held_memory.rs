//! Limits the memory held for clients and targets: requests that are not answered yet, and responses that are not
//! read yet.
//!
//! Bytes count when they arrive, not when they are announced. A holder may grow while it holds less than what is
//! still free. So the largest holders wait first, and small ones find room meanwhile. The more holders there are, the
//! less each of them gets. (Network switches share their buffers by the same rule.)
//!
//! Many holders that each wait for the last part of something large would block each other. So one holder at a time
//! may use a reserve that is large enough for the largest of them.
//!
//! Holders do not give back what they have. If each newcomer took half of the free memory, nothing would be left. So
//! a quarter is reserved for small holders: each gets a small share of the free part of that quarter, and a few
//! KiB in any case.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A holder with less room than this waits, because reading a few bytes at a time is inefficient.
const ROOM_MIN: usize = 2 << 10;
/// A holder may always hold this much: a head and a few KiB. The number of holders bounds the total.
const SMALL_BYTES: usize = 4 << 10;
/// A small holder may hold one part in this many of the free memory outside the reserve.
const SMALL_SHARE: usize = 128;

/// All memory held for others, in separate parts, so that one full part does not affect the other.
#[derive(Clone, Debug)]
pub struct Account {
    /// Heads and bodies of requests.
    pub requests: Arc<Part>,
    /// Responses, pages and streams.
    pub answers: Arc<Part>,
}

impl Account {
    /// Half is for requests and a quarter for responses; the engine uses the rest for deliveries. The last two
    /// arguments limit one request and one response.
    pub fn new(bytes: usize, request_bytes_max: usize, answer_bytes_max: usize) -> Account {
        Account {
            requests: Part::new(bytes / 2, request_bytes_max),
            answers: Part::new(bytes / 4, answer_bytes_max),
        }
    }
}

/// One part of the account, shared by all holders of its kind.
#[derive(Debug)]
pub struct Part {
    limit: usize,
    reserve: usize,
    /// Only small holders may use this last portion.
    for_small: usize,
    used: AtomicUsize,
    /// The holder that uses the reserve; 0 for none.
    favoured: AtomicU64,
    /// The bytes that the holder has taken from the reserve. They do not reduce the room of others.
    extra: AtomicUsize,
    next_id: AtomicU64,
    /// How often a holder had to wait.
    waits: AtomicU64,
    waiting: AtomicUsize,
    /// Waiting holders, smallest first.
    queue: Mutex<BTreeMap<(usize, u64), Waiting>>,
}

/// A waiting holder, and the room that it needs.
#[derive(Debug)]
struct Waiting {
    least: usize,
    waker: Waker,
}

impl Part {
    /// `whole_max` is the most that one holder may ever need.
    pub fn new(limit: usize, whole_max: usize) -> Arc<Part> {
        Arc::new(Part {
            limit,
            reserve: whole_max.min(limit / 2),
            for_small: limit / 4,
            used: AtomicUsize::new(0),
            favoured: AtomicU64::new(0),
            extra: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
            waits: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            queue: Mutex::default(),
        })
    }

    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// How often a holder had to wait.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    pub fn holder(self: &Arc<Part>) -> Holder {
        let id = self.next_id.fetch_add(1, Relaxed);
        Holder { part: self.clone(), id, bytes: AtomicUsize::new(0), queued: Mutex::new(None) }
    }

    /// How many more bytes a holder of `held` bytes may take; 0 if that is less than `least`.
    fn room(&self, held: usize, least: usize) -> usize {
        let used = self.used.load(SeqCst).saturating_sub(self.extra.load(Relaxed));
        let free = (self.limit - self.reserve).saturating_sub(used);
        let room = free.saturating_sub(self.for_small).saturating_sub(held);
        if room >= least {
            return room;
        }
        let small = (free / SMALL_SHARE).max(SMALL_BYTES).saturating_sub(held);
        // For the last bytes of a small request a read is worthwhile, however few they are.
        if small >= least || least == ROOM_MIN { small } else { 0 }
    }

    /// Wakes the smallest waiting holder for which there is room. That holder then wakes the next.
    fn wake(&self) {
        // A waiter increments the counter before it checks for room; this side makes room before it reads the
        // counter.
        if self.waiting.load(SeqCst) == 0 {
            return;
        }
        for ((held, _), waiting) in &*self.queue() {
            if self.room(*held, waiting.least) > 0 || self.favoured.load(SeqCst) == 0 {
                return waiting.waker.wake_by_ref();
            }
            // The holders behind it hold more.
            if self.room(*held, ROOM_MIN) == 0 {
                return;
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, BTreeMap<(usize, u64), Waiting>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory that one connection, call or stream holds. Dropping it frees the bytes.
#[derive(Debug)]
pub struct Holder {
    part: Arc<Part>,
    id: u64,
    bytes: AtomicUsize,
    /// How much it held when it began to wait.
    queued: Mutex<Option<usize>>,
}

impl Holder {
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// How many more bytes it may take now. Less than one read counts as none.
    pub fn room(&self) -> usize {
        self.room_for(ROOM_MIN)
    }

    /// True if the holder may take this many more bytes now.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.room_for(bytes) >= bytes
    }

    /// How many more bytes it may take, or 0 if that is less than `least`.
    fn room_for(&self, least: usize) -> usize {
        match self.part.room(self.bytes(), least) {
            0 if self.is_favoured() => {
                self.part.reserve.saturating_sub(self.part.extra.load(Relaxed)).max(least)
            }
            room => room,
        }
    }

    /// Waits until there is room.
    pub fn poll_room(&self, cx: &mut Context<'_>) -> Poll<usize> {
        self.poll_room_for(ROOM_MIN, cx)
    }

    fn poll_room_for(&self, least: usize, cx: &mut Context<'_>) -> Poll<usize> {
        let mut room = self.room_for(least);
        if room == 0 {
            self.queue_up(least, cx.waker());
            if self.room_for(least) == 0 {
                // Takes the reserve if no other holder has it.
                let _ = self.part.favoured.compare_exchange(0, self.id, SeqCst, SeqCst);
            }
            room = self.room_for(least);
        }
        if room == 0 {
            return Poll::Pending;
        }
        self.leave();
        Poll::Ready(room)
    }

    /// Waits until there is room for this many bytes.
    pub async fn wait(&self, bytes: usize) -> usize {
        std::future::poll_fn(|cx| self.poll_room_for(bytes, cx)).await
    }

    /// True if the holder waits for room.
    pub fn is_waiting(&self) -> bool {
        self.part.waiting.load(Relaxed) > 0 && self.queued().is_some()
    }

    /// Adds bytes that have arrived. They count even if there is no room.
    pub fn grow(&self, bytes: usize) {
        if self.is_favoured() {
            self.part.extra.fetch_add(bytes, Relaxed);
        }
        self.bytes.fetch_add(bytes, Relaxed);
        self.part.used.fetch_add(bytes, Relaxed);
    }

    /// Removes bytes that are freed.
    pub fn shrink(&self, bytes: usize) {
        if bytes > 0 {
            let held = self.bytes.fetch_sub(bytes, Relaxed);
            self.part.used.fetch_sub(bytes, SeqCst);
            if held == bytes || self.returned_reserve(bytes) {
                self.give_up_reserve();
            }
            self.part.wake();
        }
    }

    /// Freed bytes go back to the reserve first. True if the holder used the reserve and has returned all of it. A
    /// stream may hold some bytes for as long as it lives, and would otherwise keep the reserve for that time.
    fn returned_reserve(&self, bytes: usize) -> bool {
        if !self.is_favoured() {
            return false;
        }
        let taken = self.part.extra.load(Relaxed);
        self.part.extra.store(taken.saturating_sub(bytes), Relaxed);
        taken > 0 && taken <= bytes
    }

    fn give_up_reserve(&self) {
        if self.is_favoured() {
            self.part.extra.store(0, Relaxed);
            self.part.favoured.store(0, SeqCst);
        }
    }

    /// Frees all but `bytes`, and gives up the reserve.
    pub fn keep(&self, bytes: usize) {
        let was_favoured = self.is_favoured();
        self.shrink(self.bytes().saturating_sub(bytes));
        if was_favoured {
            self.give_up_reserve();
            self.part.wake();
        }
    }

    fn is_favoured(&self) -> bool {
        self.part.favoured.load(Relaxed) == self.id
    }

    fn queue_up(&self, least: usize, waker: &Waker) {
        let (mut queued, held) = (self.queued(), self.bytes());
        let mut queue = self.part.queue();
        match queued.replace(held) {
            Some(before) if before != held => drop(queue.remove(&(before, self.id))),
            Some(_) => {}
            None => {
                self.part.waits.fetch_add(1, Relaxed);
                self.part.waiting.fetch_add(1, SeqCst);
            }
        }
        queue.insert((held, self.id), Waiting { least, waker: waker.clone() });
    }

    /// Stops waiting. There may be room for the next holder too.
    pub fn leave(&self) {
        if self.part.waiting.load(Relaxed) == 0 {
            return;
        }
        let Some(held) = self.queued().take() else { return };
        self.part.queue().remove(&(held, self.id));
        self.part.waiting.fetch_sub(1, SeqCst);
        self.part.wake();
    }

    fn queued(&self) -> MutexGuard<'_, Option<usize>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.leave();
        self.keep(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, SeqCst);
        }
    }

    fn poll(holder: &Holder, woken: &Arc<Woken>) -> Poll<usize> {
        woken.0.store(false, SeqCst);
        holder.poll_room(&mut Context::from_waker(&woken.clone().into()))
    }

    fn was_woken(woken: &Woken) -> bool {
        woken.0.load(SeqCst)
    }

    #[test]
    fn the_largest_waits_first() {
        let part = Part::new(160_000, 20_000);
        let (large, small) = (part.holder(), part.holder());
        large.grow(50_000);
        assert_eq!((large.room(), small.room()), (0, 50_000), "the holder has as much as is free");
        small.grow(1_000);
        assert_eq!(small.room(), 48_000);
        drop(small);
        assert_eq!((part.used(), large.room()), (50_000, 0));
        large.keep(10_000);
        assert_eq!(large.room(), 80_000);
    }

    #[test]
    fn one_large_holder_at_a_time_may_finish() {
        let part = Part::new(160_000, 20_000);
        let holders: Vec<Holder> = (0..10).map(|_| part.holder()).collect();
        holders.iter().for_each(|holder| holder.grow(10_000));
        let woken: Vec<Arc<Woken>> = holders.iter().map(|_| Arc::default()).collect();
        assert_eq!(poll(&holders[0], &woken[0]), Poll::Ready(20_000), "the first holder gets the reserve");
        for (holder, woken) in holders.iter().zip(&woken).skip(1) {
            assert_eq!(poll(holder, woken), Poll::Pending);
            assert!(holder.is_waiting());
        }
        assert_eq!((part.waits(), holders[0].is_waiting()), (10, false));
        holders[0].grow(10_000);
        assert!(!woken.iter().any(|woken| was_woken(woken)));
        holders[0].keep(0);
        let next = woken.iter().position(|woken| was_woken(woken)).expect("another holder is woken");
        assert_eq!(woken.iter().filter(|woken| was_woken(woken)).count(), 1, "only one holder is woken");
        assert!(poll(&holders[next], &woken[next]).is_ready());
        drop(holders);
        assert_eq!(part.used(), 0);
    }

    #[test]
    fn waiting_holders_are_woken_smallest_first_and_wake_each_other() {
        let part = Part::new(160_000, 20_000);
        let (first, second) = (part.holder(), part.holder());
        let (favoured, large) = (part.holder(), part.holder());
        let woken: [Arc<Woken>; 3] = Default::default();
        first.grow(5_000);
        second.grow(6_000);
        favoured.grow(7_000);
        large.grow(81_500);
        assert!(poll(&favoured, &Arc::default()).is_ready());
        assert!(poll(&second, &woken[1]).is_pending());
        assert!(poll(&first, &woken[0]).is_pending());
        assert!(poll(&large, &woken[2]).is_pending());
        large.keep(50_000);
        assert_eq!(woken.each_ref().map(|woken| was_woken(woken)), [true, false, false]);
        assert!(poll(&first, &woken[0]).is_ready());
        assert_eq!(woken.each_ref().map(|woken| was_woken(woken)), [false, true, false]);
        assert!(poll(&second, &woken[1]).is_ready());
        assert!(!was_woken(&woken[2]), "the holder has more than is free");
        drop(favoured);
        assert!(was_woken(&woken[2]), "the reserve is free");
    }

    #[test]
    fn a_stream_that_never_drains_keeps_to_the_limit() {
        let part = Part::new(160_000, 20_000);
        let unread: Vec<Holder> = (0..10).map(|_| part.holder()).collect();
        unread.iter().for_each(|holder| holder.grow(10_000));
        let streams: Vec<Holder> = (0..4).map(|_| part.holder()).collect();
        let woken: Vec<Arc<Woken>> = streams.iter().map(|_| Arc::default()).collect();
        streams.iter().for_each(|stream| stream.grow(5_000));
        let mut moved = [0; 4];
        for round in 0..400 {
            let n = round % 4;
            if poll(&streams[n], &woken[n]).is_ready() {
                streams[n].grow(5_000);
                streams[n].shrink(5_000);
                moved[n] += 1;
            }
            assert!(part.used() <= part.limit, "{} bytes", part.used());
            assert!(unread[0].room() == 0 && part.extra.load(Relaxed) <= part.reserve);
        }
        assert!(moved.iter().all(|moved| *moved > 10), "every stream continues: {moved:?}");
    }

    #[test]
    fn small_ones_pass_whatever_many_hold_who_came_before() {
        let part = Part::new(48 << 20, 8 << 20);
        let burst = |bytes: usize| {
            let holder = part.holder();
            while holder.bytes() < bytes && holder.room() > 0 {
                holder.grow(holder.room().min(bytes - holder.bytes()).min(64 << 10));
            }
            holder
        };
        let mut open: Vec<Holder> = (0..400).map(|_| burst(130_000)).collect();
        assert!(part.holder().room() >= 16 << 10, "{}", part.holder().room());
        open.extend((0..2_000).map(|_| burst(60_000)));
        assert_eq!(part.holder().room(), SMALL_BYTES);
        let small = part.holder();
        small.grow(SMALL_BYTES - 10);
        assert_eq!(small.room(), 10, "a small holder may use its last byte");
        assert!(part.used() <= part.limit + open.len() * SMALL_BYTES - part.reserve, "{}", part.used());
        open.iter().for_each(|holder| assert!(holder.room() == 0));
    }

    #[test]
    fn no_bytes_are_lost_with_many_threads() {
        let part = Part::new(64 << 10, 8 << 10);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
        let tasks: Vec<_> = (0..64_usize)
            .map(|n| {
                let part = part.clone();
                runtime.spawn(async move {
                    for round in 0..200 {
                        let holder = part.holder();
                        let mut missing = 1 + (n * 131 + round * 17) % (8 << 10);
                        while missing > 0 {
                            let piece = holder.wait(1).await.min(missing).min(1 << 10);
                            holder.grow(piece);
                            missing -= piece;
                            tokio::task::yield_now().await;
                        }
                    }
                })
            })
            .collect();
        runtime.block_on(async {
            for task in tasks {
                tokio::time::timeout(std::time::Duration::from_secs(60), task).await.unwrap().unwrap();
            }
        });
        assert_eq!((part.used(), part.waiting.load(SeqCst)), (0, 0));
    }
}
