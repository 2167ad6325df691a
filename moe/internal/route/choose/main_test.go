package choose

import (
	"os"
	"testing"

	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
)

func TestMain(m *testing.M) { os.Exit(drivertest.Main(m, open.Device)) }
