package mma

type namedLevel struct {
	name string
	use  func() (restore func())
}

func levels() (out []namedLevel) {
	for l, name := range []string{levelGo: "go", levelAVX2: "avx2", levelAVX512: "avx512"} {
		if l <= widest() {
			out = append(out, namedLevel{name, func() func() {
				level = l
				return func() { level = widest() }
			}})
		}
	}
	return out
}
