package nccl

import "fmt"

// versionText formats NCCL's version number: 22304 is 2.23.4.
func versionText(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }
