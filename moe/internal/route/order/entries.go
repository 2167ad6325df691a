package order

import (
	"sonicmoe/driver"
	"sonicmoe/ptx"
)

// Entries has the tokens of a list's entries. Structs of arguments embed it, and only kernels for
// lists read it.
type Entries struct {
	// TokenOf [L] i32 is the token of each entry. NumTokens is T.
	TokenOf   driver.DevicePtr
	NumTokens int
}

// entries has the kernel's operands for Entries.
type entries struct {
	tokenOf ptx.Global
	tokens  ptx.U32
}

// token loads an entry's token.
func (l entries) token(entry ptx.U32) ptx.U32 {
	return ptx.LdGlobal[ptx.U32](l.tokenOf.Index(entry, 4))
}
