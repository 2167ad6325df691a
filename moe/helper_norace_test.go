//go:build !race

package moe_test

const raceDetector = false
