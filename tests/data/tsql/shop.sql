-- What the shop and its warehouse need in one database. Written for the tests of brokerd import.
USE master
GO
ALTER DATABASE [Store] SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE;
GO
USE [Store];
GO
CREATE MESSAGE TYPE [//shop/Order] VALIDATION = WELL_FORMED_XML;
CREATE MESSAGE TYPE [//shop/Packed] VALIDATION = WELL_FORMED_XML
CREATE MESSAGE TYPE [//shop/Tick] AUTHORIZATION dbo VALIDATION = EMPTY
GO
CREATE CONTRACT [//shop/Orders] (
    [//shop/Order] SENT BY INITIATOR,
    [//shop/Packed] SENT BY TARGET,
    [//shop/Tick] SENT BY ANY
);
GO
CREATE QUEUE dbo.ShopQueue WITH STATUS = ON, RETENTION = OFF;
CREATE QUEUE [dbo].[PackingQueue]
    WITH STATUS = ON,
         ACTIVATION (PROCEDURE_NAME = dbo.PackOrders, MAX_QUEUE_READERS = 4, EXECUTE AS OWNER),
         POISON_MESSAGE_HANDLING (STATUS = OFF)
    ON [PRIMARY];
CREATE SERVICE [//shop/Shop] ON QUEUE ShopQueue;
CREATE SERVICE [//shop/Packing] ON QUEUE [dbo].[packingqueue] ([//shop/Orders]);
GO
