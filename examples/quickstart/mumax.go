//go:build mumax

package main

import _ "sonicmoe/driver/mumax" // for -device mumax
