package reference

// Poison is a NaN that no kernel computes (computed NaNs are 0x7fff). Outputs that are
// preset to Poison show which elements were never written. Memory filled with bytes
// of 0xff holds Poison.
const Poison uint16 = 0xffff
