package rounding

import "sonicmoe/ptx"

// This file has the layout of the table of keys [E, T]. Rows are padded for loads of several
// words.

const (
	// keysAtOnce is the number of keys that one load reads. keyLoads is the number of loads
	// that a thread has in flight.
	keysAtOnce = 4
	keyLoads   = 4
)

// KeyStride is the distance between two experts' rows, in words.
func KeyStride(tokens int) int { return (tokens + keysAtOnce - 1) / keysAtOnce * keysAtOnce }

// rowOf returns an expert's row of a table.
func rowOf(table ptx.Global, expert, tokens ptx.U32) ptx.Global {
	stride := tokens.AddI(keysAtOnce - 1).DivI(keysAtOnce).MulI(keysAtOnce)
	return table.Plus(expert.MulWide(stride).MulI(4))
}

// eachKeys runs body for the keys of the tokens [from, to). A thread has keysAtOnce neighbouring
// tokens, and from is a multiple of keysAtOnce. Within a warp, higher lanes have higher tokens.
// Keys of tokens past the end are meaningless. All lanes of a warp take part.
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
