// Package sweeps holds only tests, those that run whole layers over and over to
// ask something of each line or each order: apart from package moe's so that
// either's take a share of the time that `go test` gives a package.
package sweeps
