//! The job that is measured: an ordinary program that neither knows nor asks which allocator it has.

use std::time::{Duration, Instant};

use crate::corpus;
use crate::index::{Index, Query};
use crate::measure::Readings;
use crate::options::Options;
use crate::prng::{Prng, scramble};
use crate::progress::Progress;

/// Below this, repeating the input until the heap is large would take more rounds than sense.
const LEAST_TEXT: usize = 64 << 10;

/// Queries are drawn in batches, so that only the answering is timed and the queries fill no memory to speak of.
const BATCH: usize = 20_000;

/// The index, and what making it took.
pub fn build(options: &Options, readings: &mut Readings) -> Result<Index, String> {
    let source = options.source();
    let start = Instant::now();
    let files = source.files().map_err(|error| format!("{}: {error}", source.root.display()))?;
    let mut index = Index::default();
    let mut progress = Progress::new("building the index:");
    let wanted = options.heap_mib << 20;
    let mut repeats = 0;
    while index.held_bytes() < wanted {
        for path in &files.taken {
            if let Some(text) = corpus::read(path) {
                index.add(path.clone(), &text);
            }
            progress.at(index.held_bytes(), wanted);
        }
        repeats += 1;
        if repeats == 1 && index.text_bytes() < LEAST_TEXT {
            return Err(format!("{}: less than {LEAST_TEXT} bytes of text", source.root.display()));
        }
    }
    readings.set_time("build", start.elapsed());
    readings.set("root", source.root.display());
    readings.set("files", files.taken.len());
    readings.set("files_total", files.total);
    readings.set("text", index.text_bytes() / repeats);
    readings.set("repeats", repeats);
    readings.set("documents", index.documents());
    readings.set("terms", index.terms());
    readings.set("postings", index.postings());
    Ok(index)
}

/// Answers queries drawn at random from `index`.
pub fn query(index: &Index, options: &Options, readings: &mut Readings) -> Result<(), String> {
    let mut prng = Prng::new(2);
    let mut progress = Progress::new("answering queries:");
    let (mut spent, mut found, mut checksum) = (Duration::ZERO, 0, 0);
    for done in (0..options.queries).step_by(BATCH) {
        let batch: Option<Vec<Query>> =
            (0..BATCH.min(options.queries - done)).map(|_| Query::draw(index, &mut prng)).collect();
        let batch = batch.ok_or("the files hold too few words")?;
        let start = Instant::now();
        for query in &batch {
            let answer = index.answer(query);
            assert!(answer.documents > 0, "{} was not found by its own words", index.path(query.drawn_from));
            found += answer.documents;
            checksum = scramble(checksum ^ answer.checksum);
        }
        spent += start.elapsed();
        progress.at(done, options.queries);
    }
    readings.set_time("queries", spent);
    readings.set("asked", options.queries);
    readings.set("found", found);
    readings.set("checksum", format!("{checksum:016x}"));
    Ok(())
}
