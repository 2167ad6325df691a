package activation_test

import (
	"context"
	"fmt"

	"sonicmoe/driver/emulated"
	"sonicmoe/moe/activation"
	"sonicmoe/ptx"
)

// A new activation is a value and its derivatives. Verify runs both on a device and
// compares the derivatives with differences of the value.
func ExampleVerify() {
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	square := activation.Function{
		Value: func(gate, _ ptx.F32) ptx.F32 { return gate.Mul(gate) },
		Gradient: func(gate, _, grad ptx.F32) (value, dGate, dUp ptx.F32) {
			return gate.Mul(gate), grad.Mul(gate).Mul(ptx.Float(2)), ptx.Float(0)
		},
	}
	fmt.Println(activation.Verify(context.Background(), dev, square))

	right := square.Gradient
	square.Gradient = func(gate, up, grad ptx.F32) (value, dGate, dUp ptx.F32) {
		value, dGate, dUp = right(gate, up, grad)
		return value, dGate.Mul(ptx.Float(1.01)), dUp
	}
	fmt.Println(activation.Verify(context.Background(), dev, square) != nil)
	// Output:
	// <nil>
	// true
}
