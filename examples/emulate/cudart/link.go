//go:build cgo && linux

package main

// #cgo LDFLAGS: ${SRCDIR}/versions.so -ldl
import "C"
