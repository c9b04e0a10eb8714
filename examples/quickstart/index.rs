//! The work: an inverted index of words and of phrases of two words, and the queries it answers.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::prng::{Prng, scramble};

/// One place where a term occurs.
#[derive(Clone, Copy)]
struct Posting {
    document: u32,
    line: u32,
    /// Counted from the start of the line.
    word: u32,
}

impl Posting {
    fn new(document: usize, line: usize, word: usize) -> Posting {
        Posting { document: document as u32, line: line as u32, word: word as u32 }
    }
}

/// A term is one word, or up to this many adjacent words of a line.
const LONGEST_PHRASE: usize = 3;

struct Document {
    path: PathBuf,
    lines: Vec<String>,
}

/// Documents, and for each term (a word, or two adjacent words with a space between) the places where it occurs,
/// in ascending order of documents.
#[derive(Default)]
pub struct Index {
    documents: Vec<Document>,
    terms: HashMap<String, Vec<Posting>>,
    postings: usize,
    text_bytes: usize,
    /// All but the table of terms.
    held_bytes: usize,
}

impl Index {
    pub fn add(&mut self, path: PathBuf, text: &str) {
        for (number, line) in text.lines().enumerate() {
            self.add_line(number, &line.to_lowercase());
        }
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        self.text_bytes += text.len();
        self.held_bytes += text.len() + lines.capacity() * size_of::<String>();
        self.documents.push(Document { path, lines });
    }

    fn add_line(&mut self, number: usize, line: &str) {
        let words: Vec<&str> = words(line).collect();
        for start in 0..words.len() {
            let posting = Posting::new(self.documents.len(), number, start);
            for end in start + 1..=words.len().min(start + LONGEST_PHRASE) {
                self.post(words[start..end].join(" "), posting);
            }
        }
    }

    fn post(&mut self, term: String, posting: Posting) {
        let term_bytes = term.len();
        let list = self.terms.entry(term).or_default();
        if list.is_empty() {
            self.held_bytes += term_bytes;
        }
        let room = list.capacity();
        list.push(posting);
        self.held_bytes += (list.capacity() - room) * size_of::<Posting>();
        self.postings += 1;
    }

    /// The documents that hold every term of `query`, at most ten of them, each with the line where its rarest
    /// term first occurs: all folded into one number.
    pub fn answer(&self, query: &Query) -> Answer {
        let mut lists: Vec<&[Posting]> = query.terms.iter().map(|term| self.occurrences(term)).collect();
        lists.sort_by_key(|list| list.len());
        let mut answer = Answer::default();
        let Some((rarest, others)) = lists.split_first() else { return answer };
        let in_all = |hits: &&[Posting]| others.iter().all(|list| mentions(list, hits[0].document));
        for hits in rarest.chunk_by(|a, b| a.document == b.document).filter(in_all).take(10) {
            answer.add(hits, self.line_at(hits[0]));
        }
        answer
    }

    fn occurrences(&self, term: &str) -> &[Posting] {
        self.terms.get(term).map_or(&[], Vec::as_slice)
    }

    fn line_at(&self, posting: Posting) -> &str {
        let line = &self.documents[posting.document as usize].lines[posting.line as usize];
        line.trim()
    }

    /// The memory that the index has asked for. Counted, not measured, so that it is the same under every allocator.
    pub fn held_bytes(&self) -> usize {
        // The table keeps one bucket in eight empty, and a byte beside each.
        let buckets = self.terms.capacity() / 7 * 8;
        self.held_bytes + buckets * (size_of::<(String, Vec<Posting>)>() + 1)
    }

    /// Bytes of text that were added.
    pub fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    pub fn documents(&self) -> usize {
        self.documents.len()
    }

    pub fn terms(&self) -> usize {
        self.terms.len()
    }

    pub fn postings(&self) -> usize {
        self.postings
    }

    /// The path of a document, for an error message.
    pub fn path(&self, document: usize) -> String {
        self.documents[document].path.display().to_string()
    }
}

/// `list` is in ascending order of documents.
fn mentions(list: &[Posting], document: u32) -> bool {
    list.binary_search_by_key(&document, |posting| posting.document).is_ok()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Terms that all have to occur in a document.
pub struct Query {
    terms: Vec<String>,
    /// A document that holds them all, so that an answer can be checked.
    pub drawn_from: usize,
}

impl Query {
    /// What somebody looks for who remembers a document: of four phrases in it, the two or three that are rarest.
    /// `None` when the documents hold no phrases to speak of.
    pub fn draw(index: &Index, prng: &mut Prng) -> Option<Query> {
        (0..1000).find_map(|_| Query::draw_once(index, prng))
    }

    fn draw_once(index: &Index, prng: &mut Prng) -> Option<Query> {
        let drawn_from = prng.below(index.documents.len());
        let document = index.documents.get(drawn_from)?;
        let mut terms: Vec<String> = (0..4).filter_map(|_| phrase(document, prng)).collect();
        terms.sort_by_key(|term| index.occurrences(term).len());
        terms.truncate(2 + prng.below(2));
        (terms.len() >= 2).then_some(Query { terms, drawn_from })
    }
}

/// Two or three adjacent words from some line of `document`, unless the line is too short.
fn phrase(document: &Document, prng: &mut Prng) -> Option<String> {
    let line = document.lines.get(prng.below(document.lines.len()))?.to_lowercase();
    let words: Vec<&str> = words(&line).collect();
    let length = 2 + prng.below(LONGEST_PHRASE - 1);
    let start = prng.below((words.len() + 1).checked_sub(length)?);
    Some(words.get(start..start + length)?.join(" "))
}

/// How many documents matched, and everything about them in one number.
#[derive(Default)]
pub struct Answer {
    pub documents: u64,
    pub checksum: u64,
}

impl Answer {
    fn add(&mut self, hits: &[Posting], line: &str) {
        let Posting { document, line: number, word } = hits[0];
        let place = (u64::from(document) << 32) | u64::from(number);
        let amount = u64::from(word) + (hits.len() + line.len()) as u64;
        self.documents += 1;
        self.checksum = scramble(self.checksum ^ place).wrapping_add(amount);
    }
}
