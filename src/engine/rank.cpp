#include "engine/rank.h"

#include <c10/util/Exception.h>

#include "fullshard/base/error.h"
#include "fullshard/base/error_report.h"

namespace fullshard::engine {

int report_current_exception() noexcept {
  try {
    throw;
  } catch (const base::Error& error) {
    base::report_error(error);
    return base::exit_code(error);
  } catch (const c10::Error& error) {
    // what() would add torch's stack trace, which says nothing to a user.
    base::report_error(std::runtime_error(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    base::report_error(error);
  } catch (...) {
    base::report_error(std::runtime_error("an exception that is no std::exception"));
  }
  return 1;
}

int run_as_rank(comm::World world, const std::function<int(comm::World&)>& body) {
  try {
    return body(world);
  } catch (const std::exception& error) {
    // Told before the others hear of it, so that this cause comes before what follows from it.
    const int code = report_current_exception();
    world.group().abort(error.what());
    return code;
  }
}

}  // namespace fullshard::engine
