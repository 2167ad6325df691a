package reference

// Poison is a NaN that no kernel computes (they give 0x7fff): the bits to
// preset outputs with, so that an element never written is told from a NaN
// that was computed. Memory filled with bytes of 0xff holds it.
const Poison uint16 = 0xffff
