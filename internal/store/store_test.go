package store

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOutcomeNames(t *testing.T) {
	assert.Len(t, outcomeNames, int(Deleted)+1)
	assert.Equal(t, "deleted", Deleted.String())
	assert.Equal(t, "outcome 99", Outcome(99).String())
}
