package ptxas_test

import (
	"fmt"
	"strings"

	"sonicmoe/ptx/ptxas"
)

// ExampleComplaint shows that a spill in a report of ptxas is a complaint.
func ExampleComplaint() {
	fmt.Printf("%q\n", ptxas.Complaint("ptxas info    : Function properties for axpy\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"))
	fmt.Println(strings.TrimSpace(ptxas.Complaint("ptxas info    : Function properties for axpy\n    8 bytes stack frame, 10 bytes spill stores, 0 bytes spill loads\n")))
	// Output:
	// ""
	// 8 bytes stack frame, 10 bytes spill stores, 0 bytes spill loads
}
