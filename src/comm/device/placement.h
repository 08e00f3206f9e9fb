#pragma once

namespace fullshard::comm::device {

/// This rank's place on its host.
struct LocalPlace {
  int rank = 0;
  int size = 1;
};

/// Which of the `devices` GPUs that this process sees is this rank's: that of its number on the
/// host, so that ranks of one host never share one. When `restricted`, that is when the launcher
/// chose what each process sees, a single one is its own whatever the number. Throws
/// base::Error kConfiguration, on all ranks of the host, when one would have none (the rule that
/// all processes on device 0 break), saying how many ranks and GPUs there are.
int choose_device(LocalPlace place, int devices, bool restricted);

/// Whether CUDA_VISIBLE_DEVICES names what this process may see.
bool devices_are_restricted();

}  // namespace fullshard::comm::device
