package nccl

import "fmt"

// versionText writes 22304 as 2.23.4.
func versionText(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }
