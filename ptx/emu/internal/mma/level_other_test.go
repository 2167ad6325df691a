//go:build !amd64

package mma

type namedLevel struct {
	name string
	use  func() (restore func())
}

func levels() []namedLevel { return []namedLevel{{"go", func() func() { return func() {} }}} }
