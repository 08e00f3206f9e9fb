#include <nlohmann/json.hpp>

#include "fullshard/planner/report.h"

namespace fullshard::planner {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const ModelShape& shape) {
  return {{"name", shape.name},
          {"kind", shape.kind == ModelKind::kDecoder ? "decoder" : "encoder"},
          {"layers", shape.layers},
          {"dim", shape.dim},
          {"heads", shape.heads},
          {"vocab", shape.vocab},
          {"seq", shape.seq},
          {"mlp_ratio", shape.mlp_ratio},
          {"tie_embeddings", shape.tie_embeddings},
          {"parameters", parameter_count(shape)},
          {"flops_per_token", flops_per_token(shape)}};
}

Json json_of(const Machines& machines) {
  return {{"hosts", machines.hosts},
          {"ranks_per_host", machines.ranks_per_host},
          {"threads_per_rank", machines.threads_per_rank},
          {"memory_per_host", machines.memory_per_host},
          {"flops_per_rank", machines.flops},
          {"host_bandwidth", machines.host_bandwidth},
          {"network_bandwidth", machines.network_bandwidth},
          {"network_latency", machines.network_latency},
          {"unit_overhead", machines.unit_overhead},
          {"library_bytes", machines.library_bytes}};
}

Json json_of(const Job& job) {
  return {{"model", json_of(job.model)},           {"machines", json_of(job.machines)},
          {"precision", to_string(job.precision)}, {"batch", job.batch},
          {"micro_batches", job.micro_batches},    {"tokens_per_step", job.tokens_per_step()}};
}

Json json_of(const MemoryParts& parts) {
  return {{"parameters", parts.parameters},
          {"optimizer", parts.optimizer},
          {"gradients", parts.gradients},
          {"unreduced", parts.unreduced},
          {"tied", parts.tied},
          {"activations", parts.activations},
          {"gathered", parts.gathered},
          {"building", parts.building},
          {"libraries", parts.libraries},
          {"total", parts.total()}};
}

Json json_of(const StepEstimate& step) {
  return {{"compute", step.compute},
          {"recompute", step.recompute},
          {"gather_waits", step.gather_waits},
          {"adding", step.adding},
          {"reduction_waits", step.reduction_waits},
          {"optimizer", step.optimizer},
          {"update_waits", step.update_waits},
          {"exposed", step.exposed()},
          {"total", step.total()}};
}

Json json_of(const Assessment& way, const Job& job) {
  return {{"strategy", to_string(way.candidate.strategy)},
          {"units_of", to_string(way.candidate.units)},
          {"atoms", to_string(way.candidate.cuts)},
          {"recompute", way.candidate.recompute},
          {"prefetch", way.candidate.prefetch},
          {"fits", way.fits},
          {"units", way.units},
          {"largest_unit_bytes", way.largest_unit_bytes},
          {"peak_unsharded_bytes", way.peak_unsharded_bytes},
          {"gathers", way.gathers},
          {"bytes_between_hosts", way.bytes_between_hosts},
          {"largest_share", way.largest_share},
          {"memory",
           {{"moment", way.memory.moment},
            {"rank", json_of(way.memory.rank)},
            {"host", json_of(way.memory.host)}}},
          {"step", json_of(way.step)},
          {"tokens_per_second", way.tokens_per_second(job)}};
}

Json json_of(const HeadProposal& heads) {
  Json rules = Json::array();
  for (const AtomRule& rule : heads.rules) {
    rules.push_back({{"pattern", rule.pattern},
                     {"atom", rule.atom == layout::Atom::kColumn ? "column" : "row"},
                     {"group", rule.group}});
  }
  return {{"heads_per_group", heads.heads_per_group},
          {"largest_share", heads.largest_share},
          {"rules", std::move(rules)}};
}

Json json_of(const TrainSettings& settings) {
  Json fields = Json::object();
  for (const auto& [key, value] : settings.fields) fields[key] = value;
  return {{"fields", std::move(fields)}, {"left_out", settings.missing}};
}

Json json_of(const std::vector<Remedy>& remedies) {
  Json json = Json::array();
  for (const Remedy& remedy : remedies) {
    json.push_back(
        {{"change", remedy.change}, {"host_bytes", remedy.host_bytes}, {"fits", remedy.fits}});
  }
  return json;
}

}  // namespace

std::string to_json(const SettledJob& settled, const Plan& plan) {
  const Candidate& first = plan.best().candidate;
  Json json = {{"job", json_of(plan.job)},
               {"assumed", settled.assumed},
               {"rates_from", settled.rates_from},
               {"fits", plan.fits()},
               {"reasons", plan.reasons},
               {"heads", json_of(plan.heads)},
               {"train", json_of(train_settings(plan.job, first))},
               {"cpp", cpp_options(plan.job, first)},
               {"remedies", json_of(plan.remedies)}};
  json["with_heads"] = json_of(plan.with_heads, plan.job);
  json["granularities"] = Json::array();
  for (const Assessment& way : plan.granularities()) {
    json["granularities"].push_back(json_of(way, plan.job));
  }
  json["ways"] = Json::array();
  for (const Assessment& way : plan.ways) json["ways"].push_back(json_of(way, plan.job));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fullshard::planner
