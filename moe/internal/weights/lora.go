package weights

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// The factors of an adapter have the layouts of W1 and W2, with the padded rank in the place of a
// width.

// LoraA1 returns the first factor for W1 and W3: r rows of d.
func LoraA1(c spec.Config) Matrix {
	c.Intermediate, c.Hidden = c.Hidden, spec.PaddedRank(c)
	return W2(c)
}

// LoraB1 returns the second factor for W1, with that of W3 as its second part if gate and up
// are apart: the rows of W1, of r.
func LoraB1(c spec.Config) Matrix {
	c.Hidden = spec.PaddedRank(c)
	return W1(c)
}

// LoraA2 returns the first factor for W2: r rows of n.
func LoraA2(c spec.Config) Matrix {
	c.Hidden = spec.PaddedRank(c)
	return W2(c)
}

// LoraB2 returns the second factor for W2: d rows of r.
func LoraB2(c spec.Config) Matrix {
	c.Intermediate = spec.PaddedRank(c)
	return W2(c)
}

// U returns the rows of the product of one factor. Their width is the padded rank. TMA loads zeros past
// it.
func U(c spec.Config) Rows { return Rows{1, spec.PaddedRank(c)} }

// UMap returns the map with which a product loads rows of U.
func UMap(c spec.Config, u driver.DevicePtr, rows int) gpu.TensorMap {
	return tile.RowMap(u, U(c).Elements(), rows, gemm.TileM)
}

// HasAdapter reports whether a token has an adapter in a layer with a table of adapters. id is the place
// in the table that the token names. A place whose scale is 0 has no adapter.
func HasAdapter(c spec.Config, scales ptx.Global, id ptx.U32) ptx.Pred {
	scale := ptx.LdGlobal[ptx.F32](scales.Index(id.MinI(c.LoRAAdapters-1), 4))
	return id.LtI(c.LoRAAdapters).And(scale.Gt(ptx.Float(0)).Or(scale.Lt(ptx.Float(0))))
}

// SingleU returns the rows of a single token's product with LoraA2: a row for each slot, with zeros up
// to a whole number of steps of mma.sync.
func SingleU(c spec.Config) Rows {
	return Rows{1, (c.LoRARank + tile.KStep - 1) / tile.KStep * tile.KStep}
}

// Adapter returns the extra operands of a product in a layer with an adapter: u has the rows of
// the product of one factor, and other is the other factor, with the product's columns.
func Adapter(c spec.Config, u ptx.TensorMap, other B, maps []ptx.TensorMap) gemm.Extra {
	return gemm.Extra{Steps: (c.LoRARank + tile.KStep - 1) / tile.KStep, Load: func(p *gemm.Product, s pipeline.Stage, t schedule.Tile, i int) {
		at := ptx.Uint(i * tile.K)
		p.K.TMALoad(s.Data, u, s.Full, at, t.Row)
		other.Load(p, maps, s, t, func() ptx.U32 { return at }, 0)
	}}
}
