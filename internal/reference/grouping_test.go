package reference_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"sonicmoe/internal/reference"
)

func TestGroup(t *testing.T) {
	tests := []struct {
		name    string
		experts []int32
		num     int
		want    reference.Grouping
	}{
		{"by hand", []int32{2, 0, 0, 2, 2, 1}, 4, reference.Grouping{
			Offsets: []int32{0, 2, 3, 6, 6}, Flat: []int32{1, 2, 5, 0, 3, 4}, Row: []int32{3, 0, 1, 4, 5, 2}}},
		{"skipped and repeated", []int32{1, 1, -1, 2, 0, 1 << 30}, 2, reference.Grouping{
			Offsets: []int32{0, 1, 3}, Flat: []int32{4, 0, 1}, Row: []int32{1, 2, -1, -1, 0, -1}}},
		{"no tokens", []int32{}, 3, reference.Grouping{Offsets: make([]int32, 4), Flat: []int32{}, Row: []int32{}}},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.want, reference.Group(tt.experts, tt.num), tt.name)
	}
}
