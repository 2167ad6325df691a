package rounding

import "sonicmoe/ptx"

// This file says where the keys lie that Keys writes, and Cutoff and List read:
// tables [E, T] of words, whose rows are padded for loads of several.

const (
	// keysAtOnce is how many keys a load takes, keyLoads how many loads a thread has
	// in flight.
	keysAtOnce = 4
	keyLoads   = 4
)

// KeyStride is from one expert's row to the next, in words.
func KeyStride(tokens int) int { return (tokens + keysAtOnce - 1) / keysAtOnce * keysAtOnce }

// rowOf is an expert's row of a table.
func rowOf(table ptx.Global, expert, tokens ptx.U32) ptx.Global {
	stride := tokens.AddI(keysAtOnce - 1).DivI(keysAtOnce).MulI(keysAtOnce)
	return table.Plus(expert.MulWide(stride).MulI(4))
}

// eachKeys runs body for the keys of tokens from up to to, keysAtOnce neighbours
// of each thread's at a time, in order within a warp; from is a multiple of
// that. Those of tokens from to on mean nothing. Whole warps take part.
func eachKeys(k *ptx.Kernel, row ptx.Global, from, to, thread ptx.U32, threads int, body func(token ptx.U32, keys []ptx.U32)) {
	k.For(from, to, ptx.Uint(keysAtOnce*keyLoads*threads), func(first ptx.U32) {
		var keys [keyLoads][]*ptx.Var[ptx.U32]
		at := func(i int) ptx.U32 { return first.AddI(i * keysAtOnce * threads).Add(thread.MulI(keysAtOnce)) }
		for i := range keys {
			keys[i] = ptx.NewVars(k, keysAtOnce, ptx.Uint(0))
			k.If(at(i).Lt(to), func() {
				for j, key := range ptx.LdGlobalVec[ptx.U32](row.Index(at(i), 4), keysAtOnce) {
					keys[i][j].Set(key)
				}
			})
		}
		for i, v := range keys {
			body(at(i), []ptx.U32{v[0].Get(), v[1].Get(), v[2].Get(), v[3].Get()})
		}
	})
}
