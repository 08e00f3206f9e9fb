#include "cli/doctor.h"

#include <cstdio>

#include "fullshard/doctor/trace.h"

namespace fullshard::cli {

int doctor_trace(const DoctorTraceCommand& command) {
  const doctor::TraceReport report = doctor::analyse(doctor::read_records(command.files));
  std::fputs((command.json ? to_json(report) : to_text(report)).c_str(), stdout);
  return 0;
}

}  // namespace fullshard::cli
