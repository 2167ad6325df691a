package reference

// Poison is a bf16 NaN that no kernel computes, because computed NaNs are 0x7fff. Tests preset
// outputs to Poison, which then shows the elements that were never written. Memory filled with
// bytes of 0xff holds Poison.
const Poison uint16 = 0xffff
