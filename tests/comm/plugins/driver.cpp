// A driver for the tests of what is there: as many GPUs, and what it says at its start, are given
// when it is compiled.
extern "C" int cuInit(unsigned) { return START; }

extern "C" int cuDeviceGetCount(int* count) {
  *count = GPUS;
  return 0;
}
