package bias

import (
	"os"
	"testing"

	"sonicmoe/driver/drivertest"
	"sonicmoe/driver/open"
)

func TestMain(m *testing.M) { os.Exit(drivertest.Main(m, open.Device)) }
