//! A row-major matrix that several threads write, each its own rectangle.

use std::marker::PhantomData;

/// An output buffer whose disjoint parts may be borrowed from several threads.
pub(crate) struct SharedRows<'a> {
    data: *mut f32,
    len: usize,
    stride: usize,
    life: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer comes from a `&mut [f32]` borrowed for 'a; `row` hands out parts of it under the contract that
// no two live parts overlap, which is all that sharing it needs.
unsafe impl Sync for SharedRows<'_> {}

impl<'a> SharedRows<'a> {
    /// Rows of `stride` elements in `data`.
    pub fn new(data: &'a mut [f32], stride: usize) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), stride, life: PhantomData }
    }

    /// Elements `col .. col + len` of `row`.
    ///
    /// # Panics
    /// If the part lies outside the buffer.
    ///
    /// # Safety
    /// No two parts that are alive at the same time may overlap.
    #[allow(clippy::mut_from_ref, reason = "the contract above stands in for the borrow checker")]
    pub unsafe fn row(&self, row: usize, col: usize, len: usize) -> &mut [f32] {
        let start = row * self.stride + col;
        assert!(start <= self.len && len <= self.len - start, "part of an output outside its buffer");
        // SAFETY: in bounds by the assertion; unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), len) }
    }
}
