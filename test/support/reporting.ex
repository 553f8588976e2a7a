# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Reporting do
  @moduledoc """
  Sets what is done about suspicious options while a test runs, which in all other tests is nothing.

  It is one setting for the whole application, so only tests that are not `async` may change it.
  """

  @key :on_suspicious_config

  @doc "Sets it to `action`, until the test is over."
  def report_by(action) do
    before = Application.fetch_env!(:external_service, @key)
    ExUnit.Callbacks.on_exit(fn -> Application.put_env(:external_service, @key, before) end)
    Application.put_env(:external_service, @key, action)
  end

  @doc "Takes the setting away, until the test is over."
  def report_by_default do
    report_by(:ignore)
    Application.delete_env(:external_service, @key)
  end
end
