module sonicmoe

go 1.25.0
