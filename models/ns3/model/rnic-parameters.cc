/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-parameters.h"

#include "ns3/abort.h"
#include "ns3/boolean.h"
#include "ns3/double.h"
#include "ns3/nstime.h"
#include "ns3/string.h"
#include "ns3/uinteger.h"

#include <algorithm>

namespace ns3
{

TypeId
AddParameter(TypeId tid, const netacc::AttributeSpec& spec, Ptr<const AttributeAccessor> accessor)
{
    std::string name(spec.name);
    std::string help(spec.description);
    std::string initial(spec.initial);
    switch (spec.form)
    {
    case netacc::AttributeForm::Number:
        return tid.AddAttribute(name,
                                help,
                                UintegerValue(std::stoull(initial)),
                                accessor,
                                MakeUintegerChecker<uint64_t>(spec.least, spec.greatest));
    case netacc::AttributeForm::Factor:
        return tid.AddAttribute(name,
                                help,
                                DoubleValue(std::stod(initial)),
                                accessor,
                                MakeDoubleChecker<double>(static_cast<double>(spec.least)));
    case netacc::AttributeForm::Flag:
        return tid.AddAttribute(name, help, BooleanValue(initial == "true"), accessor, MakeBooleanChecker());
    case netacc::AttributeForm::Nanoseconds:
        return tid.AddAttribute(name,
                                help,
                                TimeValue(NanoSeconds(std::stoll(initial))),
                                accessor,
                                MakeTimeChecker(NanoSeconds(spec.least)));
    case netacc::AttributeForm::Word:
        break;
    }
    // The model checks the word when the NICs are made.
    return tid.AddAttribute(name, help, StringValue(initial), accessor, MakeStringChecker());
}

const netacc::AttributeSpec&
FindParameter(const rust::Vec<netacc::AttributeSpec>& specs, const std::string& name)
{
    auto found = std::find_if(specs.begin(), specs.end(), [&](const auto& spec) { return std::string(spec.name) == name; });
    NS_ABORT_MSG_IF(found == specs.end(), "the model declares no parameter " << name);
    return *found;
}

std::string
ParameterText(const AttributeValue& value)
{
    if (auto time = dynamic_cast<const TimeValue*>(&value))
    {
        return std::to_string(time->Get().GetNanoSeconds());
    }
    if (auto flag = dynamic_cast<const BooleanValue*>(&value))
    {
        return flag->Get() ? "true" : "false";
    }
    return value.SerializeToString(nullptr);
}

} // namespace ns3
