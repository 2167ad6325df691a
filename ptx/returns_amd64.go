package ptx

// returns writes the return addresses of the goroutine's stack, innermost first. The first one is in
// the caller of returns.
//
//go:noescape
func returns(to *callStack)
